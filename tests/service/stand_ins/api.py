"""Answers every GET with 200 and its process id, on the inherited socket, and gives signs of life."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

from service.supervise.pulse import beating


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = str(os.getpid()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        print(format % args, flush=True)


async def main() -> None:
    server = HTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
    server.socket = socket.socket(fileno=int(sys.argv[1]))
    async with beating():
        await asyncio.sleep(0)  # the first sign is given before anybody learns of this process
        await asyncio.to_thread(server.serve_forever)


if __name__ == "__main__":
    asyncio.run(main())
