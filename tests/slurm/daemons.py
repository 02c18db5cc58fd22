"""A real SLURM on this machine for the tests: munged, slurmctld and a slurmd per node, as children of the test process; with
accounts and QOS also mariadbd and slurmdbd.

Needs root (or the packages installed) and Debian's apt. Everything it starts it stops by pid.
"""

import ctypes
import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PACKAGES = {"slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client", "munged": "munge"}
ACCOUNTING = {"slurmdbd": "slurmdbd", "mariadbd": "mariadb-server-core", "mariadb": "mariadb-client-core"}
PLUGIN = "slurm-wlm-mysql-plugin"  # of slurmdbd; has no program of its own
PATIENCE = 4
"""By what factor a busy machine may be slower than an idle one."""


@dataclass(frozen=True)
class Site:
    """Return what differs between clusters: processors of each node that runs here, and lines of slurm.conf."""

    nodes: dict[str, int]
    lines: str
    accounting: bool = False


PLAIN = Site(
    {"n1": 4, "n2": 4},
    """
JobRequeue=1
AccountingStorageType=accounting_storage/none
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP
""",
)

CONF = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
AuthType=auth/munge
# cred_expire is also how long a requeued job is held back; less than 5 counts as 120.
AuthInfo=socket={run}/munge/socket,cred_expire=5
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={run}/ctld
SlurmctldPidFile={run}/slurmctld.pid
SlurmdSpoolDir={run}/slurmd.%n
SlurmdPidFile={run}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
# Two nodes on one machine, with more processors than it has.
SlurmdParameters=config_overrides
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0,batch_sched_delay=0
KillWait=5
# Finished jobs stay visible; ids differ from those of another SLURM on this machine.
MinJobAge=3600
FirstJobId={first_job}
SlurmdTimeout=30
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=8000 State=UNKNOWN\n"

DBD_CONF = """
AuthType=auth/munge
AuthInfo=socket={run}/munge/socket
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={user}
PidFile={run}/slurmdbd.pid
CommitDelay=0
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageLoc=accounts
StorageUser=slurm
StoragePass=slurm
"""


class Unavailable(Exception):
    """There is no SLURM here and none can be installed; says why."""


def install(accounting: bool = False) -> None:
    """Install what is missing from Debian's packages, one test process at a time. Raises Unavailable."""
    with open(Path(tempfile.gettempdir()) / "fox-slurm-install.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _install(accounting)


def _install(accounting: bool) -> None:
    wanted = {**PACKAGES, **(ACCOUNTING if accounting else {})}
    missing = [package for program, package in wanted.items() if _which(program) is None]
    if not missing:
        return
    missing += [PLUGIN] if accounting else []
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise Unavailable(f"{', '.join(missing)} not installed, and installing needs root and apt-get")
    policy = Path("/usr/sbin/policy-rc.d")  # keeps the packages from starting daemons of their own
    made = not policy.exists()
    if made:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *missing]):
            done = subprocess.run(
                ["apt-get", *command], env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                capture_output=True, text=True, timeout=240, check=False,
            )  # fmt: skip
            if done.returncode:
                raise Unavailable(f"apt-get {command[0]} failed: {done.stderr.strip().splitlines()[-1:]}")
    finally:
        if made:
            policy.unlink()


class Slurm:
    """`start` it, use `environment` for its commands, `stop` it."""

    def __init__(self, site: Site = PLAIN) -> None:
        self.site = site
        self.run = Path(tempfile.mkdtemp(prefix="fox-slurm-", dir="/run" if os.access("/run", os.W_OK) else "/tmp"))
        self.run.chmod(0o755)  # munged wants to be reachable
        self.environment = {**os.environ, "SLURM_CONF": str(self.run / "slurm.conf")}
        self.children: dict[str, subprocess.Popen] = {}
        self.hosts_before: str | None = None

    def start(self) -> None:
        for name in ("munge", "ctld", "log", "db", *(f"slurmd.{node}" for node in self.site.nodes)):
            (self.run / name).mkdir(mode=0o755)
        (self.run / "munge" / "key").write_bytes(os.urandom(128))
        (self.run / "munge" / "key").chmod(0o600)
        self._configure()
        self._name_nodes()
        munge = self.run / "munge"
        self._spawn("munged", "--foreground", f"--key-file={munge}/key", f"--socket={munge}/socket",
                    f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed")  # fmt: skip
        until(lambda: (munge / "socket").exists(), 10, "munged's socket")
        if self.site.accounting:
            self._start_accounting()
        self.start_controller()
        for node in self.site.nodes:
            self.start_node(node)
        if self.site.nodes:
            until(self.nodes_up, 90, "nodes that are up")

    def _configure(self) -> None:
        self.dbd_port, ctld_port, *ports = _free_ports(2 + len(self.site.nodes))
        host = socket.gethostname().split(".")[0]
        lines = [
            CONF.format(host=host, run=self.run, user=_user(), first_job=random.randrange(1, 60_000_000), ctld_port=ctld_port)
        ]
        for (name, cpus), port in zip(self.site.nodes.items(), ports, strict=True):
            lines.append(NODE.format(name=name, cpus=cpus, host=host, port=port))
        if self.site.accounting:
            lines.append(
                "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=127.0.0.1\n"
                f"AccountingStoragePort={self.dbd_port}\nAccountingStoragePass={self.run}/munge/socket\n"
            )
            dbd = self.run / "slurmdbd.conf"
            dbd.write_text(DBD_CONF.format(host=host, run=self.run, user=_user(), port=self.dbd_port))
            dbd.chmod(0o600)
        (self.run / "slurm.conf").write_text("".join(lines) + self.site.lines)

    def _start_accounting(self) -> None:
        """A database without a password for root, and slurmdbd upon it; both reached by sockets in our folder."""
        data, socket_file, init = self.run / "db", self.run / "mysql.sock", self.run / "init.sql"
        init.write_text("CREATE DATABASE accounts;\nCREATE USER 'slurm'@'localhost' IDENTIFIED BY 'slurm';\n"
                        "GRANT ALL ON accounts.* TO 'slurm'@'localhost';\n")  # fmt: skip
        made = self.call("mariadb-install-db", "--no-defaults", f"--user={_user()}", f"--datadir={data}", "--skip-test-db",
                         "--auth-root-authentication-method=normal", timeout=120)  # fmt: skip
        if made.returncode:
            raise Unavailable(f"mariadb-install-db failed: {made.stderr.strip()[-300:]}")
        self._spawn("mariadbd", "--no-defaults", f"--user={_user()}", f"--datadir={data}", "--skip-networking",
                    f"--socket={socket_file}", f"--init-file={init}", "--innodb-lock-wait-timeout=900")  # fmt: skip
        ask = ("mariadb", "--no-defaults", "-uslurm", "-pslurm", "-S", str(socket_file), "-e", "select 1")
        until(lambda: self.call(*ask).returncode == 0, 60, "the database")
        self.environment["MYSQL_UNIX_PORT"] = str(socket_file)
        self._spawn("slurmdbd", "-D")
        until(lambda: self.call("sacctmgr", "-n", "show", "cluster").returncode == 0, 60, "slurmdbd")

    def start_controller(self) -> None:
        self._spawn("slurmctld", "-D")
        until(lambda: self.call("scontrol", "ping").returncode == 0, 20, "an answer of slurmctld")

    def stop_controller(self) -> None:
        self._end("slurmctld")

    def start_node(self, node: str) -> None:
        self._spawn("slurmd", "-D", "-N", node, name=f"slurmd.{node}")

    def nodes_up(self) -> bool:
        found = dict(line.split() for line in self.call("sinfo", "--noheader", "-N", "-o", "%N %T").stdout.splitlines())
        return len(found) == len(self.site.nodes) and all(state in ("idle", "mixed", "allocated") for state in found.values())

    def call(self, *command: str, timeout: float = 20) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 1, "", "timed out")

    def stop(self) -> None:
        if "slurmctld" in self.children:
            jobs = self.call("squeue", "-h", "-o", "%A").stdout.split()
            if jobs:
                self.call("scancel", *sorted(set(jobs)))
                until(lambda: not self.call("squeue", "-h").stdout.strip(), 20, "jobs to end", fail=False)
        for name in reversed(list(self.children)):
            self._end(name)
        self._end_left_over()
        if self.hosts_before is not None:
            Path("/etc/hosts").write_text(self.hosts_before)
        shutil.rmtree(self.run, ignore_errors=True)

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-2000:]}" for path in sorted((self.run / "log").iterdir()))

    def _name_nodes(self) -> None:
        """A job's processes meet at the first node's name, so the names must mean this machine."""
        try:
            for node in self.site.nodes:
                socket.gethostbyname(node)
        except OSError:
            hosts = Path("/etc/hosts")
            try:
                self.hosts_before = hosts.read_text()
                hosts.write_text(self.hosts_before + f"127.0.0.1 {' '.join(self.site.nodes)}\n")
            except OSError as error:
                self.hosts_before = None
                raise Unavailable(f"cannot name the nodes in /etc/hosts: {error.strerror}") from error

    def _spawn(self, program: str, *arguments: str, name: str | None = None) -> None:
        path = _which(program)
        assert path is not None
        with open(self.run / "log" / f"{name or program}.log", "a") as log:
            self.children[name or program] = subprocess.Popen(
                [path, *arguments], env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, preexec_fn=_die_with_parent,
            )  # fmt: skip

    def _end(self, name: str) -> None:
        process = self.children.pop(name)
        process.terminate()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _end_left_over(self) -> None:
        """Step daemons detach from slurmd; those of this SLURM name its configuration in their environment."""
        mark = f"SLURM_CONF={self.run / 'slurm.conf'}".encode()
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                ours = mark in (entry / "environ").read_bytes().split(b"\0")
                if ours and (entry / "comm").read_text().strip() == "slurmstepd":
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue


def until(condition: Callable[[], object], seconds: float, what: str, fail: bool = True, every: float = 0.1) -> None:
    """Wait for `condition`. `seconds`: what an idle machine needs at most; a busy one gets PATIENCE times as long. TimeoutError
    if `what` never came; without `fail` return after `seconds`."""
    seconds *= PATIENCE if fail else 1
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            if fail:
                raise TimeoutError(f"waited {seconds} s for {what}")
            return
        time.sleep(every)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _which(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.geteuid()).pw_name


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
