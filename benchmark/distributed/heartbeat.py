"""Whether the other ranks are alive: a dead one ends the run, where the exchange with it would wait for hours.

The first rank is connected with every other one, and both ends send a byte a beat. A killed rank also shows as an error
of the exchange that others are in; a stopped one, or a machine that is gone, shows here alone.
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
from collections.abc import Iterator

import torch.distributed as dist

from benchmark.distributed import launch
from benchmark.errors import ConfigError

LIMIT = 30.0
"""Seconds without a sign after which a rank is gone; the environment's FULCRUM_SILENCE instead, where it is set."""

BEATS = 10
"""Signs a rank gives within the limit."""

BEAT, END, BYE = b".", b"!", b"~"
"""Alive; somebody is gone; I end in order."""


class Heartbeat(threading.Thread):
    """Tells the other ranks that this one is alive, and ends this process when one of them is not.

    Beats are counted, not seconds: a run that is stopped as a whole and goes on (Ctrl-Z, a laptop asleep) has lost
    nobody.

    Args:
        peers: connections by rank: the first one's to all others, another one's to the first.
        limit: seconds of silence.
    """

    def __init__(self, peers: dict[int, socket.socket], limit: float) -> None:
        super().__init__(name="pulse", daemon=True)
        self.peers, self.limit = peers, limit
        self.silent = dict.fromkeys(peers, 0)
        self.ended: set[int] = set()  # without a word
        self.parted: set[int] = set()
        self.needed = 0  # beats for which this rank has waited for one that has parted
        self.exchanging = self.interrupted = self.told = False
        self.waker, self.wakened = socket.socketpair()
        for one in (self.waker, *peers.values()):
            one.setblocking(False)

    def run(self) -> None:
        """Beats until it is stopped."""
        while True:
            ready, _, _ = select.select([self.wakened], [], [], self.limit / BEATS)
            if ready:
                heard = self.wakened.recv(64)
                if END in heard:
                    return
                if {signal.SIGINT, signal.SIGTERM} & set(heard):  # this rank may wait for one that was not told
                    self.interrupted = True
                    launch.end()
                continue
            for rank in self.peers:
                self.silent[rank] += 1
            self.listen(say=BEAT)
            self.needed = self.needed + 1 if self.exchanging and self.parted else 0
            if self.needed > 1 and not self.told:  # nobody leaves in order while another needs it
                self.announce_failure(min(self.parted), "it has stopped")
            for rank, beats in self.silent.items():
                # an interrupted process has ended its children itself, and has its own way out
                if rank in self.ended and not (self.told or self.interrupted):
                    self.announce_failure(rank, "its process has ended")
                elif beats > BEATS and rank not in self.parted and not self.told:
                    self.announce_failure(rank, f"no sign for {self.limit:g} s")
            if self.told:
                leave()

    def listen(self, say: bytes = b"") -> None:
        """Hears what the peers have said since, after saying something to them."""
        for rank, peer in self.peers.items():
            with contextlib.suppress(OSError):  # full or closed: what it does not say in turn will tell
                if say:
                    peer.send(say)
            try:
                heard = peer.recv(4096)
            except BlockingIOError:
                continue
            except OSError:
                heard = b""
            if BYE in heard:
                self.parted.add(rank)
            if heard:
                self.silent[rank] = 0
            elif rank not in self.parted:
                self.ended.add(rank)
            self.told |= END in heard

    def announce_failure(self, rank: int, why: str) -> None:
        """Says that a rank is gone, to the user and to the others, who will end without a word; then `told` is true."""
        print(  # noqa: T201
            f"error: rank {rank} is gone ({why}); every finished round is safe: "
            "run the same command again to go on, with any number of devices",
            file=sys.stderr,
            flush=True,
        )
        self.told = True
        for peer in self.peers.values():
            with contextlib.suppress(OSError):
                peer.send(END)

    def detect_failure(self) -> None:
        """Looks whether a rank has ended lately, or is known to be gone; then `told` is true. The beating ends.

        It takes two beats until the first rank knows of the death of another one, and says so.
        """
        self.hush()
        deadline = time.monotonic() + 2 * self.limit / BEATS + 1
        while not self.told and time.monotonic() < deadline:
            self.listen()
            if not self.told and (gone := self.ended | self.parted):
                self.announce_failure(min(gone), "its process has ended" if self.ended else "it has stopped")
            time.sleep(0.05)

    def hush(self) -> None:
        """Ends the beating."""
        self.waker.send(END)
        self.join()

    def stop(self) -> None:
        """Ends the beating and the connections; the others may end too by now."""
        self.hush()
        for peer in self.peers.values():
            with contextlib.suppress(OSError):
                peer.send(BYE)
        for one in (self.waker, self.wakened, *self.peers.values()):
            one.close()


_pulse: Heartbeat | None = None
_before = -1
"""Where Python told of signals before."""


def leave() -> None:
    """Ends this process from a thread of its own, while another one may wait in an exchange for good."""
    launch.end()
    if sys.stdout.isatty():  # a progress display has hidden the cursor
        os.write(sys.stdout.fileno(), b"\x1b[?25h")
    os._exit(1)


def watch(rank: int, world: int) -> None:
    """Starts to watch the other ranks; all of them call it, once they can speak to each other."""
    global _pulse, _before
    if _pulse is not None:
        return
    limit, address = _limit(), os.environ["MASTER_ADDR"]
    if rank == 0:
        peers = _accepted(address, world)
    else:
        port, token = _told(None)
        peers = {0: socket.create_connection((address, port), timeout=60)}
        peers[0].sendall(token + struct.pack("!I", rank))
    _pulse = Heartbeat(peers, limit)
    if threading.current_thread() is threading.main_thread():
        _before = signal.set_wakeup_fd(_pulse.waker.fileno(), warn_on_full_buffer=False)
    _pulse.start()


def _limit() -> float:
    """Seconds of silence, as the environment says."""
    given = os.environ.get("FULCRUM_SILENCE", str(LIMIT))
    with contextlib.suppress(ValueError):
        if 0 < float(given) < float("inf"):
            return float(given)
    raise ConfigError(f"FULCRUM_SILENCE={given!r}: give seconds, above 0")


def _accepted(address: str, world: int) -> dict[int, socket.socket]:
    """The other ranks' connections to this one, the first."""
    local = address in ("127.0.0.1", "localhost")
    several = socket.has_dualstack_ipv6() and not local
    family = socket.AF_INET6 if several else socket.AF_INET
    host = address if local else ""
    with socket.create_server((host, 0), family=family, backlog=world, dualstack_ipv6=several) as server:
        token = secrets.token_bytes(16)  # whoever else finds the port does not know it
        _told((server.getsockname()[1], token))
        server.settimeout(60)
        peers: dict[int, socket.socket] = {}
        while len(peers) < world - 1:
            peer, _ = server.accept()
            peer.settimeout(60)
            said = b""
            with contextlib.suppress(OSError):
                said = peer.recv(20, socket.MSG_WAITALL)
            if len(said) == 20 and said.startswith(token):
                peers[struct.unpack("!I", said[16:])[0]] = peer
            else:
                peer.close()
    return peers


def _told(where: tuple[int, bytes] | None) -> tuple[int, bytes]:
    """The first rank's port and token, on every rank."""
    said = [where]
    dist.broadcast_object_list(said, src=0)
    assert said[0] is not None
    return said[0]


def unwatch() -> None:
    """Stops watching: from now on a rank may end."""
    global _pulse
    if _pulse is not None:
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(_before)
        _pulse.stop()
        _pulse = None


@contextlib.contextmanager
def exchange() -> Iterator[None]:
    """Around an exchange between ranks: where it fails because one of them has ended, so does this process, in a line.

    Raises:
        SystemExit: a rank is gone.
    """
    if _pulse is not None:
        _pulse.exchanging = True
    try:
        yield
    except RuntimeError:
        if _pulse is not None:
            _pulse.detect_failure()
            if _pulse.told:
                raise SystemExit(1) from None
        raise
    finally:
        if _pulse is not None:
            _pulse.exchanging = False
