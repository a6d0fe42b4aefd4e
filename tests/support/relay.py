"""A port that leads to PostgreSQL, which a test can make silent or close."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Relay:
    """Passes bytes between its port and that of a server on loopback. While it is silent it accepts connections and
    holds back what is sent; when it closes it cuts its connections, and refuses new ones until it is opened."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._flows = threading.Event()
        self._flows.set()
        self._ends: list[socket.socket] = []
        self._lock = threading.Lock()  # guards both, so that a connection that comes while it closes is closed too
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._listen()

    def silence(self) -> None:
        self._flows.clear()

    def speak(self) -> None:
        self._flows.set()

    def close(self) -> None:
        with self._lock:
            for one in (self._listener, *self._ends):
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()
            self._ends = []
        self._flows.set()

    def open(self) -> None:
        """Listens again on the same port."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._listen()

    def _listen(self) -> None:
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                with self._lock:
                    if self._listener is not listener or listener.fileno() < 0:
                        client.close()
                        return
                    self._ends.append(client)
                    server = socket.create_connection(("127.0.0.1", self._target))
                    self._ends.append(server)
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait()
                sink.sendall(data)
        self._flows.wait()
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
