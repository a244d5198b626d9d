#!/usr/bin/env python3
"""Three small services of a shop on one port, one of which is down now and then.

/stock answers 503 twice and then works, over and over: the first time with `Retry-After`, the
second time without. /orders and /visits always work. Python's standard library is enough.

The first line on standard output is the address; requests are logged on standard error.
"""

import argparse
import itertools
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ANSWERS = {
    "/orders": {"paid": 42, "open": 3},
    "/visits": {"today": 1280},
    "/stock": {
        "items": [
            {"name": "bread", "left": 12},
            {"name": "honey", "left": 4},
            {"name": "tea", "left": 7},
        ]
    },
}

STOCK_ANSWERS = itertools.cycle(
    [(503, {"Retry-After": "1"}), (503, {}), (200, {})],
)
# Requests are served by a thread each, and an iterator is no place for two of them.
STOCK_LOCK = threading.Lock()


class Shop(BaseHTTPRequestHandler):
    """Answers one request."""

    def do_GET(self):  # the name is prescribed by the base class
        path = self.path.partition("?")[0]
        status, headers = 200, {}
        if path == "/stock":
            with STOCK_LOCK:
                status, headers = next(STOCK_ANSWERS)
        if path not in ANSWERS:
            self.answer(404, {}, {"error": "there are /orders, /visits and /stock"})
        elif status == 503:
            self.answer(503, headers, {"error": "the shelves are being counted"})
        else:
            self.answer(200, headers, ANSWERS[path])

    def answer(self, status, headers, body):
        content = json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, default=8099, help="0 takes a free one (8099)")
    arguments = parser.parse_args()
    with ThreadingHTTPServer(("127.0.0.1", arguments.port), Shop) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
