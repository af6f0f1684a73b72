"""A private Slurm cluster of two nodes on this machine, for the tests of sweeps and for trying sweeps out.

All daemons are started in one temporary folder, with their own configuration, keys and sockets, and are stopped by
process id. They have a network namespace of their own, which has the loopback interface only: no other machine reaches
them, and they reach no other machine. The cluster neither uses nor changes a Slurm, munge or MariaDB that the machine
already runs.

    python tests/slurm/cluster.py COMMAND...    # run a command inside of a new cluster, then stop the cluster
"""

import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

INSTALL = "apt-get install --no-install-recommends slurm-wlm slurmdbd munge mariadb-server"
PROGRAMS = (
    "munged", "mariadbd", "mariadb-install-db", "slurmdbd", "slurmctld", "slurmd", "sacctmgr", "setpriv", "unshare",
    "nsenter",
)  # fmt: skip
# Debian has the daemons in a folder that the search path of a user lacks.
SEARCH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"))
# Features of each node, which a job asks for as `--constraint`: one of each node's own, and one that both have.
NODES = {"n1": ("first", "small"), "n2": ("second", "small")}
# CPUs that each node says it has. Tests need two units at a time on neither.
CPUS = 2
# Seconds after which a daemon that has not started counts as broken. All of them together take 4 s on two idle cores.
START_S = 60
# Seconds without an answer after which slurmctld calls a node down, and after which it gives up on a message. Slurm's
# defaults are 300 s, which is longer than the tests, and 10 s.
NODE_DEATH_S = 5
# Seconds that jobs and daemons have between SIGTERM and SIGKILL.
KILL_S = 5
# Every so many seconds, slurmctld looks for jobs that can start. Slurm's defaults are 60 s (sched_interval) and 30 s
# (bf_interval).
SCHEDULE_S = 2
# Seconds that a job of the partition "patient" has between SIGTERM and its end, if a job of the partition "urgent"
# needs its node. A job of the default partition is requeued at once. The partition "closed" takes no jobs, and "brief"
# none of a usual time limit.
GRACE_S = 30
# Ports of slurmdbd and slurmctld, and that of the first node. Nothing else is in the network of the cluster.
DATABASE_PORT, CONTROLLER_PORT, NODE_PORT = 6819, 6817, 7001
# Word with which this script holds a network, and the file that it writes when the network can be used.
HOLD, HELD = "--hold-network", "network"
# Numbers of the requests that set the flags and an address of a network interface, and the flag of an interface that is
# up. Source: SIOCSIFFLAGS, SIOCSIFADDR and IFF_UP in man 7 netdevice.
SET_FLAGS, SET_ADDRESS, IS_UP = 0x8914, 0x8916, 1
# Second address of the loopback interface. Without an address other than 127.0.0.1, getaddrinfo with AI_ADDRCONFIG,
# which Slurm's daemons call, finds none.
SECOND_ADDRESS = "127.0.0.2"


class ClusterError(Exception):
    """A cluster cannot be started here, with the reason and the remedy."""


def find_obstacle() -> str | None:
    """Return why no cluster can be started on this machine, with the remedy; None if one can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=SEARCH) is None]
    if missing:
        return f"a test cluster needs {', '.join(missing)}; install Slurm: {INSTALL}"
    if os.geteuid() != 0:
        return "a test cluster needs root, because slurmd starts jobs as their users; run the command with sudo"
    return None


class Cluster:
    """Daemons of one cluster, its folder, and the environment in which commands reach it.

    Args:
        folder: An empty folder, with a path short enough for a socket: at most 80 characters.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = os.environ | {"PATH": SEARCH, "SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        # Nodes that were killed.
        self._changed: set[str] = set()

    def start(self) -> None:
        """Start all daemons, and wait until both nodes are idle.

        Raises: ClusterError with the end of the log of a daemon that did not start.
        """
        # munged refuses a socket that other users cannot reach.
        self.folder.chmod(0o755)
        self._configure()
        self._start("network", "unshare", "--net", sys.executable, __file__, HOLD)
        self._wait("network", (self.folder / HELD).exists)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        munge = [f"--{name}-file={self.folder / f'munge.{name}'}" for name in ("key", "pid", "log", "seed")]
        self._start("munged", "munged", "--foreground", f"--socket={self.folder / 'munge.sock'}", *munge)
        data = self.folder / "database"
        install = ("mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={data}", "--skip-test-db")
        self.run(*install, "--auth-root-authentication-method=socket")
        database = ("--no-defaults", "--user=root", f"--datadir={data}", f"--socket={self.folder / 'database.sock'}")
        small = ("--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M", "--innodb-flush-log-at-trx-commit=0")
        pid_file = f"--pid-file={self.folder / 'database.pid'}"
        self._start("mariadbd", "mariadbd", *database, *small, "--skip-networking", pid_file)
        self._wait("munged", (self.folder / "munge.sock").exists)
        self._wait("mariadbd", lambda: self._answers("mariadb-admin", "--no-defaults", *database[3:], "ping"))
        self._start("slurmdbd", "slurmdbd", "-D")
        self._wait("slurmdbd", lambda: self._answers("sacctmgr", "-n", "list", "cluster"))
        self.run("sacctmgr", "-i", "add", "cluster", "attnbench")
        self._start("slurmctld", "slurmctld", "-D")
        for node in NODES:
            self.start_node(node)
        self._wait("slurmctld", lambda: self._answers("sinfo", "-h"))
        for node in NODES:
            self.wait_for_state(node, "idle")

    def start_node(self, node: str, *, hidden: Path | None = None) -> None:
        """Start the slurmd of a node, on which the folder ``hidden`` is empty and its own: the node does not share it.

        A hidden folder needs the right to mount, which root lacks in some containers.
        """
        command = ["slurmd", "-D", "-N", node]
        if hidden is not None:
            shell = 'mount -t tmpfs none "$0" && exec "$@"'
            command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", shell, str(hidden), *command]
        self._start(node, *command)

    def kill_node(self, node: str) -> None:
        """Kill the slurmd of a node and everything that runs on the node, as a power failure does."""
        if daemon := self._daemons.pop(node, None):
            daemon.kill()
            daemon.wait()
        self._changed.add(node)
        for process, environment in self._find_processes():
            if node in (environment.get("ATTNBENCH_TEST_NODE"), environment.get("SLURMD_NODENAME")):
                _kill(process)

    def revive_node(self, node: str, *, hidden: Path | None = None) -> None:
        """Start a killed node again, and wait until it is idle."""
        self.start_node(node, hidden=hidden)
        self.wait_for_state(node, "idle")

    def reset(self) -> None:
        """Cancel all jobs, and start what was killed or hides a folder."""
        self.run("scancel", "--user=root")
        for node in sorted(self._changed):
            self.kill_node(node)
            self.revive_node(node)
        self._changed.clear()
        self._wait("slurmctld", lambda: not self.run("squeue", "-h"))

    def list_processes(self) -> list[int]:
        """Return the ids of the daemons and of everything that they started."""
        return [process for process, environment in self._find_processes() if "ATTNBENCH_TEST_NODE" in environment]

    def read_state(self, node: str) -> str:
        """Return the state of a node in sinfo's words, without the marks after it: ``idle``, ``mixed``, ``down``."""
        printed = self.run("sinfo", "-h", "-N", "-n", node, "-o", "%T").split()
        return printed[0].rstrip("*~#!%$@^-+") if printed else "unknown"

    def wait_for_state(self, node: str, state: str) -> None:
        """Wait until a node is in a state.

        Raises: ClusterError if it is not within a minute.
        """
        self._wait(node, lambda: self.read_state(node) == state)

    def inside(self, *command: str) -> list[str]:
        """Return the command line that runs a command in the network of the cluster."""
        return ["nsenter", f"--net=/proc/{self._daemons['network'].pid}/ns/net", *command]

    def run(self, *command: str) -> str:
        """Run a command in the environment of the cluster, and return what it printed.

        Raises: ClusterError with its message if it fails.
        """
        done = subprocess.run(self.inside(*command), env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ClusterError(f"{' '.join(command)} failed: {done.stdout}{done.stderr}")
        return done.stdout

    def stop(self) -> None:
        """Stop all jobs and daemons; kill what does not stop. Works also after a failed start."""
        running = list(self._daemons.items())
        for _, daemon in reversed(running):
            daemon.terminate()
        for _, daemon in running:
            try:
                daemon.wait(KILL_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._daemons.clear()
        # The keepers of running jobs outlive their slurmd, so that an upgrade of slurmd does not end jobs.
        for process, _ in self._find_processes():
            _kill(process)

    def _configure(self) -> None:
        """Write slurm.conf and slurmdbd.conf."""
        host = socket.gethostname().partition(".")[0]
        shared = f"AuthType=auth/munge\nAuthInfo=socket={self.folder / 'munge.sock'}\nSlurmUser=root\n"
        (self.folder / "state").mkdir()
        nodes = "".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} RealMemory=2000"
            f" Feature={','.join(features)} State=UNKNOWN\n"
            for port, (node, features) in enumerate(NODES.items(), start=NODE_PORT)
        )
        (self.folder / "slurm.conf").write_text(f"""{shared}
ClusterName=attnbench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={CONTROLLER_PORT}
SlurmdUser=root
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={DATABASE_PORT}
AccountingStoragePass={self.folder / "munge.sock"}
StateSaveLocation={self.folder / "state"}
SlurmdSpoolDir={self.folder}/spool-%n
SlurmctldPidFile={self.folder / "slurmctld.pid"}
SlurmdPidFile={self.folder}/slurmd-%n.pid
ReturnToService=2
SlurmdTimeout={NODE_DEATH_S}
MessageTimeout={NODE_DEATH_S}
KillWait={KILL_S}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval={SCHEDULE_S},bf_interval={SCHEDULE_S}
{nodes}PartitionName=all Nodes={",".join(NODES)} Default=YES MaxTime=UNLIMITED State=UP
PartitionName=patient Nodes={",".join(NODES)} MaxTime=UNLIMITED State=UP GraceTime={GRACE_S}
PartitionName=urgent Nodes={",".join(NODES)} MaxTime=UNLIMITED State=UP PriorityTier=2
PartitionName=closed Nodes={",".join(NODES)} State=DRAIN
PartitionName=brief Nodes={",".join(NODES)} State=UP MaxTime=5
""", encoding="utf-8")  # fmt: skip
        storage = self.folder / "slurmdbd.conf"
        storage.write_text(f"""{shared}
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={DATABASE_PORT}
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm
PidFile={self.folder / "slurmdbd.pid"}
""", encoding="utf-8")  # fmt: skip
        storage.chmod(0o600)

    def _start(self, name: str, *command: str) -> None:
        """Start a daemon, which the kernel kills if this process dies without stopping it."""
        # libmariadb, the client of slurmdbd, reads where the socket is; slurmdbd.conf cannot say it.
        marks = {"ATTNBENCH_TEST_NODE": name, "MYSQL_UNIX_PORT": str(self.folder / "database.sock")}
        words = self.inside(*command) if "network" in self._daemons else command
        with self._log(name).open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *words], env=self.environment | marks, cwd=self.folder,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def _wait(self, name: str, is_ready: Callable[[], bool]) -> None:
        """Wait for a state of a daemon.

        Raises: ClusterError with the end of the daemon's log if it dies, or if it takes more than ``START_S``.
        """
        deadline = time.monotonic() + START_S
        while not is_ready():
            # A node that was killed has no daemon.
            died = name in self._daemons and self._daemons[name].poll() is not None
            if died or time.monotonic() > deadline:
                log = self._log(name).read_text(encoding="utf-8", errors="replace")[-2000:]
                raise ClusterError(f"{name} {'died' if died else f'was not ready after {START_S} s'}; its log:\n{log}")
            time.sleep(0.05)

    def _answers(self, *command: str) -> bool:
        done = subprocess.run(self.inside(*command), env=self.environment, capture_output=True, check=False)
        return done.returncode == 0

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _find_processes(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield the processes whose environment names this cluster, with this environment, but not this process."""
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                items = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            except OSError:  # it ended
                continue
            environment = dict(item.partition("=")[::2] for item in items)
            if environment.get("SLURM_CONF") == self.environment["SLURM_CONF"] and int(folder.name) != os.getpid():
                yield int(folder.name), environment


def _kill(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def hold_network() -> None:
    """Make the loopback interface of a new network namespace usable, say so by a file, and wait to be ended."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sH22x", b"lo", IS_UP))
        address = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(SECOND_ADDRESS))
        fcntl.ioctl(any_socket, SET_ADDRESS, struct.pack("16s16s8x", b"lo:1", address))
    Path(HELD).touch()
    signal.pause()


@contextmanager
def start_cluster() -> Iterator[Cluster]:
    """Start a cluster in a new folder; afterwards stop it and remove the folder.

    Raises: ClusterError with the reason if it cannot be started.
    """
    if obstacle := find_obstacle():
        raise ClusterError(obstacle)
    # Not pytest's own folder: a socket's path has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="attnbench-slurm-", ignore_cleanup_errors=True) as folder:
        cluster = Cluster(Path(folder))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


def main(command: Sequence[str]) -> int:
    """Run a command inside of a new cluster, and return its exit status."""
    try:
        with start_cluster() as cluster:
            return subprocess.run(cluster.inside(*command), env=cluster.environment, check=False).returncode
    except ClusterError as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    if sys.argv[1:] == [HOLD]:
        hold_network()
    sys.exit(main(sys.argv[1:] or [os.environ.get("SHELL", "sh")]))
