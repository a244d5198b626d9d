"""Workers outside: the shipped example with handlers that the run counts.

Used by ./tests/chaos; STANDFAST_LEDGER is the file in which each start is written down.
"""

import os
import sys
import time
import urllib.error
import urllib.request

sys.path.insert(0, os.environ["STANDFAST_EXAMPLES"])
import worker  # noqa: E402  the path above leads to it


def note(attempt):
    claim = attempt.claim
    line = f"{claim['task']}/{claim['step']} {claim['round']} {claim['attempt']}\n"
    with open(os.environ["STANDFAST_LEDGER"], "a", encoding="utf-8") as ledger:
        ledger.write(line)


def noted(text_input, attempt):
    note(attempt)
    for n in range(int(text_input.get("tenths", 1))):
        attempt.heartbeat(f"tenth {n}")
        if attempt.cancelled.wait(0.1):
            raise worker.Cancelled("told to end")
    return {"said": text_input["say"]}


def order(text_input, attempt):
    note(attempt)
    url = text_input["url"]

    def send(key):
        request = urllib.request.Request(url, b"{}", {"Idempotency-Key": key})
        try:
            with urllib.request.urlopen(request, timeout=worker.ANSWER_SECONDS) as response:
                return {"status": response.status}
        except urllib.error.HTTPError as error:
            if error.code in (409, 429):
                raise worker.NotLanded("refused", f"the shop said {error.code}") from error
            raise
        except urllib.error.URLError as error:
            if isinstance(error.reason, ConnectionRefusedError):
                raise worker.NotLanded("not_sent", "the shop is not there") from error
            raise

    def check(_key):
        try:
            with urllib.request.urlopen(url, timeout=worker.ANSWER_SECONDS) as response:
                return {"status": response.status}
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    return attempt.effect(text_input["name"], text_input["class"], {"url": url}, send, check)


worker.HANDLERS.clear()
worker.HANDLERS.update({"noted": noted, "order": order})
worker.WAIT_MS = 2_000
started = time.monotonic()
code = worker.main()
print(f"ended after {time.monotonic() - started:.0f} s with {code}", file=sys.stderr)
sys.exit(code)
