#!/usr/bin/env python3
"""Publishes plans to Standfast over AMQP and prints the answers as JSON, one a line.

Needs pika (`pip install pika`). The exit code is 0 if every answer is a task, else 1.
"""

import argparse
import json
import sys
import time
import uuid
from urllib.parse import unquote, urlparse

import pika
import pika.exceptions


class Failure(Exception):
    """An error to be shown in one sentence."""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("plan", help="a plan as a JSON file, or - for standard input")
    parser.add_argument("--amqp", default="amqp://guest:guest@127.0.0.1:5672/%2F", metavar="URL")
    parser.add_argument("--exchange", default="standfast")
    parser.add_argument("--count", type=int, default=1, metavar="N", help="publish N tasks")
    parser.add_argument("--key", help="idempotency key; the first of N, by default a new one")
    parser.add_argument("--token", help="act as this token's principal, not as the broker's user")
    parser.add_argument("--wait", action="store_true", help="wait for the answers")
    parser.add_argument("--timeout", type=float, default=30, metavar="SECONDS")
    args = parser.parse_args()
    if args.count < 1:
        parser.error("--count must be at least 1")
    return args


def read_plan(path):
    try:
        with sys.stdin if path == "-" else open(path, encoding="utf-8") as file:
            plan = json.load(file)
    except OSError as error:
        raise Failure(f"failed to read {path}: {error.strerror}") from error
    except ValueError as error:
        raise Failure(f"failed to read {path} as JSON: {error}") from error
    if not isinstance(plan, dict):
        raise Failure(f"failed to read {path}: a plan is a JSON object")
    return plan


def keys(args):
    first = args.key or str(uuid.uuid4())
    return [first if n == 0 else f"{first}-{n}" for n in range(args.count)]


def properties(args, key, reply_to):
    """The key makes repeated messages one task. The broker checks `user_id`."""
    user = unquote(urlparse(args.amqp).username or "guest")
    return pika.BasicProperties(
        message_id=key,
        correlation_id=key,
        reply_to=reply_to,
        user_id=None if args.token else user,
        headers={"standfast-token": args.token} if args.token else None,
        content_type="application/json",
        delivery_mode=2,
    )


def publish(args, channel, body, reply_to):
    """Publishes one by one: each call returns once the broker has confirmed the message."""
    for key in keys(args):
        try:
            channel.basic_publish(
                args.exchange, "submit", body, properties(args, key, reply_to), mandatory=True
            )
        except pika.exceptions.UnroutableError as error:
            raise Failure(
                f"failed to publish: no queue takes submissions from exchange `{args.exchange}`"
            ) from error
        except pika.exceptions.NackError as error:
            raise Failure("failed to publish: the broker refused the message") from error


def collect(args, connection, answers):
    deadline = time.monotonic() + args.timeout
    while len(answers) < args.count:
        rest = deadline - time.monotonic()
        if rest <= 0:
            missing = args.count - len(answers)
            raise Failure(
                f"failed to get {missing} of {args.count} answers within {args.timeout:g} s; "
                "publish again with the same --key to ask again"
            )
        connection.process_data_events(time_limit=rest)


def run(args):
    body = json.dumps({"plan": read_plan(args.plan)}, allow_nan=False).encode()
    try:
        parameters = pika.URLParameters(args.amqp)
    except (ValueError, TypeError) as error:
        raise Failure("failed to read --amqp as an address such as amqp://user@host") from error
    connection = pika.BlockingConnection(parameters)
    answers = {}

    def on_answer(_channel, _method, props, reply):
        answer = json.loads(reply)
        if props.correlation_id not in answers:
            answers[props.correlation_id] = answer
            print(json.dumps(answer), flush=True)

    with connection:
        channel = connection.channel()
        channel.confirm_delivery()
        reply_to = None
        if args.wait:
            reply_to = channel.queue_declare("", exclusive=True).method.queue
            channel.basic_consume(reply_to, on_answer, auto_ack=True)
        publish(args, channel, body, reply_to)
        if not args.wait:
            for key in keys(args):
                print(json.dumps({"published": key}))
            return 0
        collect(args, connection, answers)
    return 0 if all("submitted" in answer for answer in answers.values()) else 1


def reason(error):
    text = getattr(error, "reply_text", None) or str(error)
    return text or "it does not answer there; is the address right?"


def main():
    args = arguments()
    try:
        return run(args)
    except Failure as failure:
        print(failure, file=sys.stderr)
    except pika.exceptions.AMQPError as error:
        print(f"failed to use the broker: {reason(error)}", file=sys.stderr)
    except OSError as error:
        print(f"failed to reach the broker: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 1


if __name__ == "__main__":
    sys.exit(main())
