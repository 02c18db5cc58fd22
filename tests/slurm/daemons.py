"""A real SLURM on this machine for the tests: munged, slurmctld and two slurmd, as children of the test process.

Needs root (or the packages installed) and Debian's apt. Everything it starts it stops by pid.
"""

import ctypes
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

PACKAGES = {"slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client", "munged": "munge"}
NODES = ("n1", "n2")

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
JobRequeue=1
KillWait=5
# Finished jobs stay visible; ids differ from those of another SLURM on this machine.
MinJobAge=3600
FirstJobId={first_job}
SlurmdTimeout=30
AccountingStorageType=accounting_storage/none
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={n1_port} CPUs=4 RealMemory=8000 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={n2_port} CPUs=4 RealMemory=8000 State=UNKNOWN
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP
"""


class Unavailable(Exception):
    """There is no SLURM here and none can be installed; says why."""


def install() -> None:
    """Install what is missing from Debian's packages. Raises Unavailable."""
    missing = [package for program, package in PACKAGES.items() if _which(program) is None]
    if not missing:
        return
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

    def __init__(self) -> None:
        self.run = Path(tempfile.mkdtemp(prefix="fox-slurm-", dir="/run" if os.access("/run", os.W_OK) else "/tmp"))
        self.run.chmod(0o755)  # munged wants to be reachable
        self.environment = {**os.environ, "SLURM_CONF": str(self.run / "slurm.conf")}
        self.children: dict[str, subprocess.Popen] = {}
        self.hosts_before: str | None = None

    def start(self) -> None:
        for name in ("munge", "ctld", "log", *(f"slurmd.{node}" for node in NODES)):
            (self.run / name).mkdir(mode=0o755)
        (self.run / "munge" / "key").write_bytes(os.urandom(128))
        (self.run / "munge" / "key").chmod(0o600)
        ports = _free_ports(3)
        text = CONF.format(
            host=socket.gethostname().split(".")[0], run=self.run, user=_user(), first_job=random.randrange(1, 60_000_000),
            ctld_port=ports[0], n1_port=ports[1], n2_port=ports[2],
        )  # fmt: skip
        (self.run / "slurm.conf").write_text(text)
        self._name_nodes()
        munge = self.run / "munge"
        self._spawn("munged", "--foreground", f"--key-file={munge}/key", f"--socket={munge}/socket",
                    f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed")  # fmt: skip
        until(lambda: (munge / "socket").exists(), 10, "munged's socket")
        self.start_controller()
        for node in NODES:
            self.start_node(node)
        until(self.nodes_up, 90, "two nodes that are up")

    def start_controller(self) -> None:
        self._spawn("slurmctld", "-D")
        until(lambda: self.call("scontrol", "ping").returncode == 0, 20, "an answer of slurmctld")

    def stop_controller(self) -> None:
        self._end("slurmctld")

    def start_node(self, node: str) -> None:
        self._spawn("slurmd", "-D", "-N", node, name=f"slurmd.{node}")

    def nodes_up(self) -> bool:
        states = self.call("sinfo", "--noheader", "-N", "-p", "main", "-o", "%T").stdout.split()
        return len(states) == len(NODES) and all(state in ("idle", "mixed", "allocated") for state in states)

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
            for node in NODES:
                socket.gethostbyname(node)
        except OSError:
            hosts = Path("/etc/hosts")
            try:
                self.hosts_before = hosts.read_text()
                hosts.write_text(self.hosts_before + f"127.0.0.1 {' '.join(NODES)}\n")
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


def until(condition: Callable[[], object], seconds: float, what: str, fail: bool = True) -> None:
    """Wait for `condition`; TimeoutError that names `what` never came."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            if fail:
                raise TimeoutError(f"waited {seconds} s for {what}")
            return
        time.sleep(0.1)


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
