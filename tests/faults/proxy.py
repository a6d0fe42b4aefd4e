"""A small TCP proxy between clients and PostgreSQL that can break the network in the ways in which networks break.

    with Proxy(server.port) as proxy:
        lane = proxy.add_lane()                  # a port of its own: one worker can be cut off while others go on
        lane.dsn(server.dsn_tcp)                 # the DSN through it
        lane.delay(0.05)                         # each piece of data arrives so much later
        lane.hang()                              # TCP still acknowledges, but nothing is forwarded
        lane.hang_present()                      # the same for the connections that there are; new ones work
        lane.given_up()                          # how many of these the client has closed since then
        lane.hang_statements()                   # connections are made, but no statement is forwarded
        lane.hang_process(pid)                   # the same for all connections of a process, new ones too, until heal()
        lane.drop()                              # packets vanish: nothing is acknowledged, no connect answered
        lane.heal()                              # held back data arrives; connections that hang by themselves are reset
        lane.reset()                             # every connection ends with RST
        lane.cut_commits(2)                      # the next two COMMITs are carried out, but the client gets RST
        lane.cut_commits(1, arrive=False)        # the next COMMIT does not even arrive
        lane.cut_commits(1, skip=3)              # the fourth COMMIT from now

The proxy runs in a thread of its own; every method may be called from any thread.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

from psycopg.conninfo import make_conninfo

T = TypeVar("T")
PIECE = 65536
COMMIT = b"commit\x00"
SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27
DROP_ALL = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))  # classic BPF: return 0 bytes of every packet
ESTABLISHED = 1  # a state of TCP: neither side has closed
RESET_AT_CLOSE = struct.pack("ii", 1, 0)


def owns_port(pid: int, port: int) -> bool:
    """Return whether a socket of this process has this port, according to Linux."""
    inodes = set()
    with suppress(OSError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                inodes.add(str(file.readlink()))
    lines = [line.split() for line in Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]]
    return any(int(line[1].split(":")[1], 16) == port and f"socket:[{line[9]}]" in inodes for line in lines)


class Route:
    """One connection: the client's socket, the server's, and what is pumped between them."""

    def __init__(self, lane: Lane, client: socket.socket) -> None:
        self.lane = lane
        self.client = client
        self.server: socket.socket | None = None
        self.cutting = False  # a COMMIT was passed on, and its answer must not reach the client
        self.hangs = False  # even if the lane does not
        self.owner: int | None = None  # the process that connected, if it is one that may hang
        self.pumps: list[asyncio.Task[None]] = []

    @property
    def sockets(self) -> list[socket.socket]:
        return [self.client] if self.server is None else [self.client, self.server]

    async def run(self) -> None:
        """Forward in both directions until one side ends."""
        loop = asyncio.get_running_loop()
        await self.lane.flowing.wait()
        try:
            self.server = socket.socket()
            self.server.setblocking(False)
            await loop.sock_connect(self.server, ("127.0.0.1", self.lane.target()))
            for end in self.sockets:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.pumps = [loop.create_task(self._forward()), loop.create_task(self._back())]
            await asyncio.wait(self.pumps, return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            self.close(reset=True)
        finally:  # also when it is cancelled while it connects
            self.close()

    async def _forward(self) -> None:
        loop, server = asyncio.get_running_loop(), self.server
        assert server is not None
        while data := await self._receive(self.client):
            while self.lane.hangs_statements and data[:1] in (b"Q", b"P"):
                await asyncio.sleep(0.05)
            if COMMIT in data and self.lane.take_cut():
                self.cutting = True
                if not self.lane.commits_arrive:
                    self.close(reset=True)
                    return
            with suppress(OSError):
                await loop.sock_sendall(server, data)

    async def _back(self) -> None:
        loop, server = asyncio.get_running_loop(), self.server
        assert server is not None
        while data := await self._receive(server):
            if self.cutting:
                self.close(reset=True)
                return
            with suppress(OSError):
                await loop.sock_sendall(self.client, data)

    async def _receive(self, end: socket.socket) -> bytes:
        """Return the next data, after the lane's delay, when the lane forwards at all."""
        await self.lane.flowing.wait()
        try:
            data = await asyncio.get_running_loop().sock_recv(end, PIECE)
        except OSError:
            return b""
        if self.lane.seconds:
            await asyncio.sleep(self.lane.seconds)
        await self.lane.flowing.wait()
        while self.lane.hung and self._find_owner() in self.lane.hung:
            await asyncio.sleep(0.05)
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        return data

    def _find_owner(self) -> int | None:
        if self.owner is None:
            port = self.client.getpeername()[1]
            self.owner = next((pid for pid in self.lane.hung if owns_port(pid, port)), None)
        return self.owner

    def close(self, *, reset: bool = False) -> None:
        for pump in self.pumps:
            if pump is not asyncio.current_task():
                pump.cancel()
        for end in self.sockets:
            with suppress(OSError):
                if reset:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
                end.close()
        self.lane.routes.discard(self)


class Lane:
    """A port that leads to the server, with a network of its own behind it."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self._listener.setblocking(False)
        self._tasks: set[asyncio.Task[None]] = set()
        self.port: int = self._listener.getsockname()[1]
        self.routes: set[Route] = set()
        self.seconds = 0.0
        self.hangs_statements = False
        self.hung: set[int] = set()  # processes whose connections hang
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.cuts = 0  # COMMITs that are still to be cut
        self.spared = 0  # and those that are let through before
        self.commits_arrive = True
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def target(self) -> int:
        return self._proxy.target

    def dsn(self, direct: str) -> str:
        """The DSN of the same database through this lane."""
        return make_conninfo(direct, host="127.0.0.1", port=self.port, sslmode="disable", gssencmode="disable")

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        client.setblocking(False)
        route = Route(self, client)
        self.routes.add(route)
        task = asyncio.get_running_loop().create_task(route.run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def take_cut(self) -> bool:
        if self.cuts <= 0:
            return False
        if self.spared > 0:
            self.spared -= 1
            return False
        self.cuts -= 1
        return True

    # --- from any thread --------------------------------------------------------------------------------------------

    def delay(self, seconds: float) -> None:
        self._proxy.call(lambda: setattr(self, "seconds", seconds))

    def hang(self) -> None:
        self._proxy.call(self.flowing.clear)

    def hang_present(self) -> int:
        """Let the present connections hang, and return how many there are."""
        found: list[int] = []
        self._proxy.call(lambda: found.append(self._hang_present()))
        return sum(found)

    def hang_statements(self) -> None:
        self._proxy.call(lambda: setattr(self, "hangs_statements", True))

    def hang_process(self, pid: int) -> None:
        self._proxy.call(lambda: self.hung.add(pid))

    def given_up(self) -> int:
        """Return how many hanging connections the client has closed, as TCP knows: no one reads them."""
        found: list[bool] = []
        self._proxy.call(lambda: found.extend(route.hangs and given_up(route.client) for route in self.routes))
        return sum(found)

    def drop(self) -> None:
        self._proxy.call(self._drop)

    def heal(self) -> None:
        self._proxy.call(self._heal)

    def reset(self) -> None:
        self._proxy.call(self._reset)

    def cut_commits(self, count: int, *, skip: int = 0, arrive: bool = True) -> None:
        self._proxy.call(lambda: self.__dict__.update(cuts=count, spared=skip, commits_arrive=arrive))

    # --- in the proxy's thread --------------------------------------------------------------------------------------

    def _hang_present(self) -> int:
        for route in self.routes:
            route.hangs = True
        return len(self.routes)

    def _drop(self) -> None:
        """A socket filter drops every packet before TCP sees it, on both sides, as a firewall does."""
        self.flowing.clear()
        for end in self._sockets():
            with suppress(OSError):
                code = struct.pack("HL", 1, ctypes.addressof(DROP_ALL))
                end.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, code)

    def _heal(self) -> None:
        for end in self._sockets():
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
        for route in [one for one in self.routes if one.hangs]:
            route.close(reset=True)
        self.seconds, self.cuts = 0.0, 0
        self.hung.clear()
        self.hangs_statements = False
        self.flowing.set()

    def _reset(self) -> None:
        for route in [*self.routes]:
            route.close(reset=True)

    def _sockets(self) -> list[socket.socket]:
        return [self._listener, *(end for route in self.routes for end in route.sockets)]

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        self._reset()
        for task in self._tasks:
            task.cancel()


def given_up(end: socket.socket) -> bool:
    with suppress(OSError):
        return end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != ESTABLISHED
    return False


class Proxy:
    """Lanes to one server on this machine. `target` may change: later connections lead to the new port."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.lanes: list[Lane] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()

    def add_lane(self) -> Lane:
        async def make() -> Lane:
            return Lane(self)

        lane = self._await(make())
        self.lanes.append(lane)
        return lane

    def call(self, act: Callable[[], object]) -> None:
        """Call `act` in the proxy's thread and wait for its end."""

        async def run() -> None:
            act()

        self._await(run())

    def _await(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    def close(self) -> None:
        async def end() -> None:
            for lane in self.lanes:
                lane.close()
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        self._await(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
