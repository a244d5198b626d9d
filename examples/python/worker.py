#!/usr/bin/env python3
"""Serves two handlers for Standfast over HTTP, with the standard library alone.

Replace `shout` by your own function: it gets the step's `with` and an Attempt, and returns the
output or raises. Any exception is retryable, unless it is one of those below. A handler that
takes long calls `attempt.heartbeat("row 400")` now and then and looks at `attempt.cancelled`;
the next attempt finds what it said last in `attempt.last_details`. `order` shows a handler that
changes the outside world once, however often it is started. The exit code is 0 after an ordinary
end, 1 after an error.
"""

import argparse
import http.client
import json
import os
import random
import signal
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid

WORD_MS = 30_000  # how long a request waits for word that an attempt is to end
WAIT_MS = 10_000  # how long a claim waits for a step; a worker that ends waits for it
ANSWER_SECONDS = 30  # how long an answer may take beyond that
GRACE_SECONDS = 20  # how long an attempt may go on after SIGTERM
WINDOW_SECONDS = 10  # how long after its intent an effect may be sent
TELL_SECONDS = 600  # how long what became of an effect is told to a silent api


class Permanent(Exception):
    """Raised by a handler when another attempt would not help."""


class RateLimited(Exception):
    """Raised by a handler when somebody asked for fewer requests: until when, in seconds."""

    def __init__(self, message, retry_after=None):
        super().__init__(message)
        self.retry_after = retry_after


class Cancelled(Exception):
    """Raised by a handler that ends because `attempt.cancelled` is set."""


def shout(text_input, attempt):
    attempt.log(f"attempt {attempt.number} shouts")
    return {"text": str(text_input["text"]).upper()}


def order(text_input, attempt):
    """Posts an order to the shop at `url`, which knows the header `Idempotency-Key`.

    An effect of class `idempotent` may be sent again under its key. Where the other side knows
    no such key, say `irreversible`: then a person is asked when nobody knows what became of it.
    """

    def send(key):
        body = json.dumps(text_input["order"]).encode()
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        request = urllib.request.Request(text_input["url"], body, headers)
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as response:
                return json.loads(response.read())
        except urllib.error.HTTPError as error:
            if error.code in (400, 409, 422):
                raise NotLanded("refused", f"the shop said {error.code}") from error
            raise
        except urllib.error.URLError as error:
            if isinstance(error.reason, ConnectionRefusedError):
                raise NotLanded("not_sent", "the shop is not there") from error
            raise  # nobody knows

    return attempt.effect("order", "idempotent", text_input["order"], send)


HANDLERS = {"shout": shout, "order": order}


class NotLanded(Exception):
    """Raised by the `send` of an effect when it is proven that it has not happened.

    `how` is `not_sent` or `refused`. Every other error means that nobody knows.
    """

    def __init__(self, how, message):
        super().__init__(message)
        self.how = how


class Over(Exception):
    """The api has ended the attempt: nothing more is sent or reported."""


class Problem(Exception):
    """The api refused."""

    def __init__(self, status, body):
        super().__init__(body.get("detail") or body.get("title") or f"status {status}")
        self.status = status
        self.kind = str(body.get("type", "")).rsplit("/", 1)[-1]
        self.passing = status == 429 or status >= 500


class Unreachable(Exception):
    """The api did not answer."""


class Api:
    def __init__(self, url, token):
        self.url, self.token = url.rstrip("/"), token

    def call(self, method, path, body=None, wait_ms=0, text=None):
        """Sends one request; gives the JSON answer, or None for an empty one."""
        data, media_type = text, "text/plain; charset=utf-8"
        if body is not None:
            data, media_type = json.dumps(body, allow_nan=False).encode(), "application/json"
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": media_type}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            timeout = ANSWER_SECONDS + wait_ms / 1000
            with urllib.request.urlopen(request, timeout=timeout) as response:
                answer = response.read()
                return json.loads(answer) if answer else None
        except urllib.error.HTTPError as error:
            raise Problem(error.code, problem_body(error)) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise Unreachable(str(error)) from error


def problem_body(error):
    try:
        body = json.loads(error.read())
    except (OSError, ValueError):
        return {}
    return body if isinstance(body, dict) else {}


def pauses():
    """Growing pauses, so that an api that comes back is not run over."""
    pause = 0.1
    while True:
        yield pause * random.uniform(0.75, 1)
        pause = min(pause * 2, 10)


class Attempt:
    """One claim: its heartbeat runs on a thread of its own until the end is reported."""

    def __init__(self, api, worker, claim):
        self.api, self.claim, self.number = api, claim, claim["attempt"]
        self.holder = {"worker": worker, "attempt": claim["attempt"], "epoch": claim["epoch"]}
        self.path = "/v1/claims/" + "/".join(
            urllib.parse.quote(claim[part], safe="") for part in ("task", "step")
        )
        self.cancelled = threading.Event()  # a handler should look at it now and then
        self.fenced = threading.Event()
        self.reported = threading.Event()
        self.ended = False  # by the api, at one of its effects
        self.under_way = False  # an effect is being sent or told
        self.log_bytes = 0
        self.last_details = claim.get("last_details")  # of the attempt before this one
        self.details = self.told = None
        self.started = self.heard = time.monotonic()
        self.due = threading.Event()  # set when a heartbeat is to be sent at once
        threading.Thread(target=self.beat, daemon=True).start()
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        """Waits for word that the attempt is to end. The heartbeat that it causes decides."""
        query = urllib.parse.urlencode({**self.holder, "wait_ms": WORD_MS})
        for pause in pauses():
            began = time.monotonic()
            try:
                while not self.reported.is_set():
                    answer = self.api.call("GET", f"{self.path}/control?{query}", wait_ms=WORD_MS)
                    if answer["stop"]:
                        self.due.set()
                        return
                    self.reported.wait(max(0, began + 1 - time.monotonic()))
                    began = time.monotonic()
            except Problem as problem:
                if not problem.passing:
                    self.due.set()  # the claim is lost, or the api older than this
                    return
            except Unreachable:
                pass
            if self.reported.wait(pause):
                return

    def beat(self):
        while True:
            self.due.wait(self.claim["heartbeat_ms"] / 1000)
            self.due.clear()
            if self.reported.is_set():
                return
            try:
                self.beat_once()
            except Problem as problem:
                if problem.kind in ("fenced", "not_found"):
                    self.fenced.set()
                    self.cancelled.set()
                    return
            except Unreachable:
                pass  # the attempt goes on; the api decides when it is back

    def beat_once(self):
        """Keeps the claim; with details if the handler has said something since the last time."""
        details = self.details
        news = {} if details is self.told else {"details": details[0]}
        answer = self.api.call("POST", self.path + "/heartbeat", {**self.holder, **news})
        self.told = details
        if answer["stop"]:
            self.cancelled.set()

    def heartbeat(self, details):
        """Says how far the attempt is, which is a sign of life, and what the next one may need."""
        self.details = (str(details),)  # a new tuple, also for the same words
        self.heard = time.monotonic()

    def over(self):
        """Says why the attempt's time is over, if it is."""
        now = time.monotonic()
        total, silent = (
            self.claim.get(name, float("inf")) / 1000
            for name in ("attempt_deadline_ms", "heartbeat_timeout_ms")
        )
        if now - self.started >= total:
            return "it was not done at the end of its time"
        if now - self.heard >= silent:
            return f"its handler gave no sign of life for {silent} s"
        return None

    def last_words(self):
        """Tells what the handler said last, so that the next attempt can go on from there."""
        try:
            if self.details is not self.told:
                self.beat_once()
        except (Problem, Unreachable):
            pass

    def log(self, line):
        """Appends a line; a log that cannot be sent does not fail the attempt."""
        text = (line + "\n").encode()
        query = urllib.parse.urlencode({**self.holder, "offset": self.log_bytes})
        try:
            self.api.call("POST", f"{self.path}/log?{query}", text=text)
            self.log_bytes += len(text)
        except (Problem, Unreachable):
            pass

    def effect(self, name, kind, request, send, check=None):
        """Changes the outside world once; gives the receipt, be it of an earlier attempt.

        `send(key)` sends exactly `request` and returns the other side's answer. `kind` is the
        effect's class: `idempotent`, `irreversible`, or `checkable` with `check(key)`, which
        returns the answer if it has happened and None if it has not.
        """
        for _ in range(4):
            if self.cancelled.is_set():
                raise Cancelled("the attempt was told to end")
            asked = time.monotonic()  # before the api can have recorded anything
            answer = self.intend(name, kind, request)
            if answer["do"] == "kept":
                return answer["receipt"]
            if answer["do"] == "check":
                found = check(answer["key"])
                if found is not None:
                    self.receipt(name, found)
                    return found
                self.not_landed(name, "checked")
                continue
            if time.monotonic() - asked >= WINDOW_SECONDS:
                self.not_landed(name, "not_sent")  # too late to send: ask again
                continue
            self.under_way = True
            try:
                receipt = send(answer["key"])
                self.receipt(name, receipt)
                return receipt
            except NotLanded as error:
                self.not_landed(name, error.how)
                raise
            finally:
                self.under_way = False
        raise RuntimeError(f"effect {name} was not sent: the answers came too late")

    def intend(self, name, kind, request):
        """Records what is about to be sent; gives what to do: send, kept or check."""
        more = {"class": kind, "request": request, "window_ms": WINDOW_SECONDS * 1000}
        more["request_timeout_ms"] = ANSWER_SECONDS * 1000
        try:
            answer = self.tell(f"effects/{urllib.parse.quote(name, safe='')}", more)
        except Problem as problem:
            if problem.kind != "fenced":
                raise
            answer = {"do": "ended"}
        if answer["do"] == "ended":
            self.ended = True
            raise Over("the task is ending, or a person is needed")
        return answer

    def receipt(self, name, receipt):
        """Tells that an effect has happened; taken also when the claim is long over."""
        self.tell(f"effects/{urllib.parse.quote(name, safe='')}/receipt", {"receipt": receipt})

    def not_landed(self, name, how):
        """Tells that an effect is known not to have happened."""
        self.tell(f"effects/{urllib.parse.quote(name, safe='')}/not-landed", {"how": how})

    def tell(self, action, more):
        """Repeats a call until the api answers: each of them may be said twice."""
        end = time.monotonic() + TELL_SECONDS
        for pause in pauses():
            try:
                return self.api.call("POST", f"{self.path}/{action}", {**self.holder, **more})
            except Problem as problem:
                if not problem.passing or time.monotonic() + pause > end:
                    raise
            except Unreachable:
                if time.monotonic() + pause > end:
                    raise
            time.sleep(pause)

    def report(self, action, more, deadline):
        """Offers the end until the api takes it, or refuses it because the claim is lost.

        `deadline()` gives the time at which to stop trying, or None while there is none.
        """
        try:
            for pause in pauses():
                try:
                    return self.api.call("POST", f"{self.path}/{action}", {**self.holder, **more})
                except Problem as problem:
                    if not problem.passing:
                        say(f"the result of {self.claim['step']} was refused: {problem}")
                        return None
                except Unreachable as error:
                    say(f"the result of {self.claim['step']} is kept: {error}")
                end = deadline()
                if end is not None and time.monotonic() + pause > end:
                    say(f"the result of {self.claim['step']} could not be reported")
                    return None
                time.sleep(pause)
        finally:
            self.reported.set()


class Worker:
    def __init__(self, args):
        self.api = Api(args.url, args.token)
        self.queue, self.max = args.queue, 1 if args.once else args.max
        self.id = f"w-{uuid.uuid4().hex}"
        self.ending = threading.Event()
        self.end_at = None
        self.running = False

    def on_signal(self, _number, _frame):
        """Ends within the grace period; a second signal ends it now."""
        self.end_at = time.monotonic() + (0 if self.ending.is_set() else GRACE_SECONDS)
        self.ending.set()

    def announce(self, leaving=False):
        handlers = [{"name": name} for name in HANDLERS]
        body = {"worker": self.id, "queues": [self.queue], "handlers": handlers}
        body |= {"concurrency": 1, "running": int(self.running)}
        return self.api.call("POST", "/v1/workers", {**body, "leaving": leaving})["again_ms"]

    def keep_announcing(self, again_ms):
        while not self.ending.wait(max(again_ms, 1000) / 1000):
            try:
                again_ms = self.announce()
            except (Problem, Unreachable):
                again_ms = 1000
        try:
            self.announce(leaving=True)  # ends the claim that may be waiting
        except (Problem, Unreachable):
            pass

    def patiently(self, call):
        """Repeats a call while the api is away; gives None when the worker is told to end."""
        for pause in pauses():
            try:
                return call()
            except Problem as problem:
                if not problem.passing:
                    raise
                say(f"the api says: {problem}")
            except Unreachable as error:
                say(f"the api does not answer: {error}")
            if self.ending.wait(pause):
                return None

    def claim(self):
        body = {"worker": self.id, "queue": self.queue, "handlers": list(HANDLERS)}
        return self.api.call("POST", "/v1/claims", {**body, "wait_ms": WAIT_MS}, WAIT_MS)

    def serve(self):
        again_ms = self.patiently(self.announce)
        if again_ms is None:
            return
        announcer = threading.Thread(target=self.keep_announcing, args=(again_ms,), daemon=True)
        announcer.start()
        done = 0
        while not self.ending.is_set() and (self.max is None or done < self.max):
            claim = self.patiently(self.claim)
            if claim is None:
                self.ending.wait(0.1)
                continue
            self.running = True
            self.run(Attempt(self.api, self.id, claim))
            self.running = False
            done += 1
        self.ending.set()
        announcer.join(timeout=5)

    def run(self, attempt):
        """Runs the handler on a thread, so that signals, lost claims and its time are noticed.

        Python cannot end a thread: one that does not look at `cancelled` goes on unheard.
        """
        if self.ending.is_set():
            self.hand_back(attempt)
            return
        outcome = []
        thread = threading.Thread(target=lambda: outcome.append(outcome_of(attempt)), daemon=True)
        thread.start()
        # A lost claim does not cut off what is being sent: its receipt is taken all the same.
        while thread.is_alive() and (attempt.under_way or not attempt.fenced.is_set()):
            thread.join(0.05)
            if self.end_at is not None and time.monotonic() >= self.end_at and thread.is_alive():
                attempt.cancelled.set()
                self.hand_back(attempt)
                return
            why = attempt.over()
            if why and thread.is_alive() and not attempt.under_way:
                attempt.cancelled.set()
                outcome.insert(0, failed("timeout", why))
                break
        if attempt.ended:
            attempt.reported.set()
            say(f"the api has ended the attempt of {attempt.claim['step']}")
            return
        if attempt.fenced.is_set():
            attempt.reported.set()
            say(f"the claim of {attempt.claim['step']} was lost; its result is dropped")
            return
        if outcome[0]["status"] == "failed":
            attempt.last_words()
        attempt.report("complete", {"outcome": outcome[0]}, lambda: self.end_at)

    def hand_back(self, attempt):
        attempt.last_words()
        more = {"reason": "the worker is shutting down"}
        end = time.monotonic() + 3
        attempt.report("hand-back", more, lambda: end)


def outcome_of(attempt):
    handler = HANDLERS.get(attempt.claim["handler"])
    try:
        if handler is None:
            raise Permanent(f"no handler {attempt.claim['handler']}")
        output = handler(attempt.claim["input"], attempt)
        json.dumps(output, allow_nan=False)
        return {"status": "succeeded", "output": output}
    except Permanent as error:
        return failed("permanent", error)
    except RateLimited as error:
        return failed("rate_limited", error, error.retry_after)
    except Cancelled as error:
        return failed("cancelled", error)
    except TimeoutError as error:
        return failed("timeout", error)
    except Problem as problem:
        return failed("retryable" if problem.passing else "permanent", problem)
    except Exception as error:  # whatever it is, the next attempt may go better
        return failed("cancelled" if attempt.cancelled.is_set() else "retryable", error)


def failed(kind, error, retry_after=None):
    message = str(error) or type(error).__name__
    outcome = {"status": "failed", "class": kind, "message": message}
    if retry_after is not None:
        outcome["retry_after_ms"] = int(retry_after * 1000)
    return outcome


def say(sentence):
    print(sentence, file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    default_url = os.environ.get("STANDFAST_URL", "http://127.0.0.1:8080")
    parser.add_argument("--url", default=default_url)
    parser.add_argument("--token", default=os.environ.get("STANDFAST_TOKEN", ""))
    parser.add_argument("--queue", default="default")
    parser.add_argument("--once", action="store_true", help="end after one attempt")
    parser.add_argument("--max", type=int, metavar="N", help="end after N attempts")
    worker = Worker(parser.parse_args())
    signal.signal(signal.SIGTERM, worker.on_signal)
    signal.signal(signal.SIGINT, worker.on_signal)
    try:
        worker.serve()
    except Problem as problem:
        say(f"failed to work: {problem}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
