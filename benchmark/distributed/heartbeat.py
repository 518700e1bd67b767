"""Detection of dead ranks: a dead rank ends the run, where a collective with it would wait for hours.

The first rank is connected with every other one, and both ends send a byte a beat. A killed rank also fails the
collective that other ranks are in; a stopped rank, or a machine that is gone, is detected here alone.
"""

import contextlib
import os
import secrets
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator

import torch.distributed as dist

from benchmark.errors import ConfigError

SILENCE = 30.0
"""Seconds without a beat after which a rank is dead; the environment variable FULCRUM_SILENCE overrides it."""

BEATS = 10
"""Beats a rank sends within the limit."""

BEAT, FAILURE, LEAVING = b".", b"!", b"~"
"""Messages: alive; a rank is dead; this rank ends in order."""


class Heartbeat(threading.Thread):
    """A thread that shows the other ranks that this one is alive, and ends this process when one of them is dead.

    Beats are counted, not seconds: a run that is suspended as a whole (Ctrl-Z, a laptop asleep) loses no rank.

    Args:
        peers: connections by rank: the first rank's to all others, another rank's to the first.
        limit: seconds of silence.
        kill_children: ends the processes that this one has started.
    """

    def __init__(self, peers: dict[int, socket.socket], limit: float, kill_children: Callable[[], None]) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self.peers, self.limit, self.kill_children = peers, limit, kill_children
        self.silent_beats = dict.fromkeys(peers, 0)
        self.dead: set[int] = set()  # connection closed without LEAVING
        self.left: set[int] = set()
        self.needed = 0  # beats for which this rank has waited in a collective for one that has left
        self.in_collective = self.interrupted = self.failure_announced = False
        self.waker, self.wakened = socket.socketpair()
        self.previous_wakeup: int | None = None
        for connection in (self.waker, *peers.values()):
            connection.setblocking(False)

    def start(self) -> None:
        """Starts the beats; signals wake the thread, since a collective keeps Python's handlers waiting."""
        if threading.current_thread() is threading.main_thread():
            self.previous_wakeup = signal.set_wakeup_fd(self.waker.fileno(), warn_on_full_buffer=False)
        super().start()

    def run(self) -> None:
        """Sends and counts beats until the thread is stopped."""
        while True:
            ready, _, _ = select.select([self.wakened], [], [], self.limit / BEATS)
            if ready:
                received = self.wakened.recv(64)
                if FAILURE in received:  # `stop`
                    return
                if {signal.SIGINT, signal.SIGTERM} & set(received):  # this rank may wait for one without the signal
                    self.interrupted = True
                    self.kill_children()
                continue
            for rank in self.peers:
                self.silent_beats[rank] += 1
            self.receive(send=BEAT)
            self.check_peers()
            if self.failure_announced:
                self.end_process()

    def check_peers(self) -> None:
        """Announces a rank that is dead, silent, or has left while this rank needs it."""
        self.needed = self.needed + 1 if self.in_collective and self.left else 0
        if self.needed > 1 and not self.failure_announced:  # no rank leaves in order while another needs it
            self.announce_failure(min(self.left), "it has stopped")
        for rank, beats in self.silent_beats.items():
            # an interrupted process has killed its children itself, and ends by its own handler
            if rank in self.dead and not (self.failure_announced or self.interrupted):
                self.announce_failure(rank, "its process has ended")
            elif beats > BEATS and rank not in self.left and not self.failure_announced:
                self.announce_failure(rank, f"no sign for {self.limit:g} s")

    def receive(self, send: bytes = b"") -> None:
        """Reads what the peers have sent, after sending something to them."""
        for rank, peer in self.peers.items():
            with contextlib.suppress(OSError):  # full or closed: the read below shows which
                if send:
                    peer.send(send)
            try:
                received = peer.recv(4096)
            except BlockingIOError:
                continue
            except OSError:
                received = b""
            if LEAVING in received:
                self.left.add(rank)
            if received:
                self.silent_beats[rank] = 0
            elif rank not in self.left:
                self.dead.add(rank)
            self.failure_announced |= FAILURE in received

    def announce_failure(self, rank: int, why: str) -> None:
        """Prints the dead rank once and notifies its peers, which then exit silently."""
        print(  # noqa: T201
            f"error: rank {rank} is gone ({why}); every finished round is safe: "
            "run the same command again to resume, with any number of devices",
            file=sys.stderr,
            flush=True,
        )
        self.failure_announced = True
        for peer in self.peers.values():
            with contextlib.suppress(OSError):
                peer.send(FAILURE)

    def detect_failure(self) -> bool:
        """Whether a rank has died lately; the beats end.

        It takes two beats until the first rank detects the death of another one and announces it.
        """
        self.stop()
        deadline = time.monotonic() + 2 * self.limit / BEATS + 1
        while not self.failure_announced and time.monotonic() < deadline:
            self.receive()
            if not self.failure_announced and (gone := self.dead | self.left):
                self.announce_failure(min(gone), "its process has ended" if self.dead else "it has stopped")
            time.sleep(0.05)
        return self.failure_announced

    def stop(self) -> None:
        """Ends the thread."""
        self.waker.send(FAILURE)
        self.join()

    def close(self) -> None:
        """Ends the thread and the connections; from now on the other ranks may end too."""
        if self.previous_wakeup is not None:  # set in the main thread alone
            signal.set_wakeup_fd(self.previous_wakeup)
        self.stop()
        for peer in self.peers.values():
            with contextlib.suppress(OSError):
                peer.send(LEAVING)
        for connection in (self.waker, self.wakened, *self.peers.values()):
            connection.close()

    def end_process(self) -> None:
        """Ends this process from this thread, while the main thread may wait in a collective forever."""
        self.kill_children()
        if sys.stdout.isatty():  # a progress display has hidden the cursor
            os.write(sys.stdout.fileno(), b"\x1b[?25h")
        os._exit(1)

    @contextlib.contextmanager
    def collective(self) -> Iterator[None]:
        """Wraps a collective; where it fails because a rank is dead, this process ends with one line.

        Raises:
            SystemExit: a rank is dead.
        """
        self.in_collective = True
        try:
            yield
        except RuntimeError:
            if self.detect_failure():
                raise SystemExit(1) from None
            raise
        finally:
            self.in_collective = False


def connect(rank: int, world_size: int, limit: float, kill_children: Callable[[], None]) -> Heartbeat:
    """The started heartbeat of this rank; every rank calls it, once the process group is up."""
    address = os.environ["MASTER_ADDR"]
    if rank == 0:
        peers = _accept(address, world_size)
    else:
        port, token = _broadcast_address(None)
        peers = {0: socket.create_connection((address, port), timeout=60)}
        peers[0].sendall(token + struct.pack("!I", rank))
    heartbeat = Heartbeat(peers, limit, kill_children)
    heartbeat.start()
    return heartbeat


def silence_limit() -> float:
    """Seconds of silence, by the environment or the default; ConfigError where the environment has no such number."""
    given = os.environ.get("FULCRUM_SILENCE", str(SILENCE))
    with contextlib.suppress(ValueError):
        if "_" not in given and 0 < float(given) < float("inf"):  # as no number of a config has
            return float(given)
    raise ConfigError(f"FULCRUM_SILENCE={given!r}: give seconds, above 0")


def _accept(address: str, world_size: int) -> dict[int, socket.socket]:
    """The other ranks' connections to the first rank."""
    local = address in ("127.0.0.1", "localhost")
    dual_stack = socket.has_dualstack_ipv6() and not local
    family = socket.AF_INET6 if dual_stack else socket.AF_INET
    host = address if local else ""
    with socket.create_server((host, 0), family=family, backlog=world_size, dualstack_ipv6=dual_stack) as server:
        token = secrets.token_bytes(16)  # a stranger who finds the port does not have it
        _broadcast_address((server.getsockname()[1], token))
        server.settimeout(60)
        peers: dict[int, socket.socket] = {}
        while len(peers) < world_size - 1:
            peer, _ = server.accept()
            peer.settimeout(60)
            greeting = b""
            with contextlib.suppress(OSError):
                greeting = peer.recv(20, socket.MSG_WAITALL)
            if len(greeting) == 20 and greeting.startswith(token):
                peers[struct.unpack("!I", greeting[16:])[0]] = peer
            else:
                peer.close()
    return peers


def _broadcast_address(address: tuple[int, bytes] | None) -> tuple[int, bytes]:
    """The first rank's port and token, on every rank."""
    values = [address]
    dist.broadcast_object_list(values, src=0)
    assert values[0] is not None
    return values[0]
