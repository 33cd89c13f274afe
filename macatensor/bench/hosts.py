"""Two hosts on one machine, for programs of several: each with its network, processes, name and files of names.

They are namespaces of the kernel, joined by a pair of virtual interfaces. To make them takes root and the programs
``unshare``, ``nsenter`` and ``ip``. They have no names on the machine and end with the processes that hold them, which
end with the one that asked: whoever dies leaves nothing behind.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

_PATIENCE = 10.0  # seconds for a namespace to be there
_SPACES = ("--net", "--mount", "--uts", "--pid")
# No name server is reachable: a look-up there would wait for one, so this machine refuses it at once.
_BEGIN = """\
set -e
mount --make-rprivate /
mount --bind {folder}/hosts /etc/hosts
mount --bind {folder}/resolv.conf /etc/resolv.conf
hostname {name}
ip link set lo up
touch {folder}/{name}
exec cat
"""


class Host(NamedTuple):
    """One of the two."""

    name: str  # which both resolve to the address
    address: str
    interface: str
    process: int  # that holds its namespaces

    def command(self, command: Sequence[str], folder: Path) -> list[str]:
        """What runs ``command`` there, in a folder, with the caller's environment."""
        enter = ["nsenter", "--target", str(self.process), *_SPACES]
        return [*enter, "sh", "-c", 'cd "$0" && exec "$@"', str(folder), *command]


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Raises OSError with what the machine refused, where namespaces cannot be made."""
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory()))
        names, addresses = ("first", "second"), ("10.77.0.1", "10.77.0.2")
        lines = ["127.0.0.1 localhost", *(f"{a} {n}" for a, n in zip(addresses, names))]
        (folder / "hosts").write_text("\n".join(lines) + "\n")
        (folder / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        hosts = []
        for number, (name, address) in enumerate(zip(names, addresses)):
            process = _hold(name, folder, ends)
            hosts.append(Host(name, address, f"maca{number}", process))
        first, second = hosts
        _run(
            *("ip", "link", "add", first.interface, "netns", str(first.process), "type", "veth", "peer"),
            *("name", second.interface, "netns", str(second.process)),
        )
        for host in hosts:
            inside = ("nsenter", "--target", str(host.process), "--net", "ip")
            _run(*inside, "addr", "add", f"{host.address}/24", "dev", host.interface)
            _run(*inside, "link", "set", host.interface, "up")
        yield first, second


def _hold(name: str, folder: Path, ends: ExitStack) -> int:
    """Starts the process of which the host's namespaces are. It ends with its standard input, so with this process."""
    begin = ["sh", "-c", _BEGIN.format(folder=folder, name=name)]
    holder = subprocess.Popen(
        ["unshare", *_SPACES, "--fork", "--kill-child", "--mount-proc", *begin],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    ends.callback(_end, holder)
    until = time.monotonic() + _PATIENCE
    while not (folder / name).exists():
        if holder.poll() is not None:
            raise OSError(f"unshare {' '.join(_SPACES)}: {holder.communicate()[1].strip()}")
        if time.monotonic() > until:
            raise OSError(f"no namespace after {_PATIENCE:.0f} seconds")
        time.sleep(0.01)
    return int(Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()[0])


def _end(holder: subprocess.Popen[str]) -> None:
    holder.kill()  # the kernel then ends every process of its namespace
    holder.communicate()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
