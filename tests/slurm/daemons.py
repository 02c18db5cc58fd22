"""A real SLURM on this machine: two nodes, accounts, a partition whose jobs are preempted. Needs root and Debian's packages,
which it installs. Its daemons are children of the test process, and it stops them by pid."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PACKAGES = (
    "slurmctld", "slurmd", "slurm-client", "munge", "slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server-core",
    "mariadb-client-core",
)  # fmt: skip
PATIENCE = 5
"""By what factor a busy machine may be slower than an idle one."""
CONF = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld}
AuthType=auth/munge
# cred_expire is also how long a requeued job is held back; less than 5 counts as 120.
AuthInfo=socket={run}/munge/socket,cred_expire=5
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={run}/ctld
SlurmctldPidFile={run}/slurmctld.pid
SlurmdSpoolDir={run}/slurmd.%n
SlurmdPidFile={run}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
SlurmdParameters=config_overrides
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0,batch_sched_delay=0
KillWait=5
# Ids differ from those of another SLURM on this machine.
FirstJobId={first}
SlurmdTimeout=10
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={dbd}
AccountingStoragePass={run}/munge/socket
AccountingStorageEnforce=associations,limits
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={n1} CPUs=4 RealMemory=8000 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={n2} CPUs=4 RealMemory=8000 State=UNKNOWN
PartitionName=main Nodes=n[1-2] Default=YES PriorityTier=1 GraceTime=20 PreemptMode=REQUEUE State=UP
PartitionName=urgent Nodes=n[1-2] PriorityTier=10 PreemptMode=OFF State=UP
"""
DBD = """
AuthType=auth/munge
AuthInfo=socket={run}/munge/socket
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={dbd}
SlurmUser=root
PidFile={run}/slurmdbd.pid
CommitDelay=0
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageLoc=accounts
StorageUser=slurm
StoragePass=slurm
"""
SQL = """CREATE DATABASE accounts;
CREATE USER 'slurm'@'localhost' IDENTIFIED BY 'slurm';
GRANT ALL ON accounts.* TO 'slurm'@'localhost';
"""


def install() -> None:
    """Install Debian's packages, without starting their daemons."""
    if shutil.which("slurmdbd", path="/usr/sbin") and shutil.which("mariadbd", path="/usr/sbin"):
        return
    policy = Path("/usr/sbin/policy-rc.d")
    made = not policy.exists()
    if made:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    for words in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *PACKAGES]):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", *words], env=environment, check=True, capture_output=True)
    if made:
        policy.unlink()


class Slurm:
    """`start` it, use `environment` for its commands, `stop` it."""

    def __init__(self) -> None:
        self.run = Path(tempfile.mkdtemp(prefix="fox-slurm-", dir="/run"))
        self.run.chmod(0o755)  # munged wants to be reachable
        self.environment = {**os.environ, "SLURM_CONF": f"{self.run}/slurm.conf", "MYSQL_UNIX_PORT": f"{self.run}/mysql.sock"}
        self.children: list[subprocess.Popen] = []

    def start(self) -> None:
        run, munge = self.run, self.run / "munge"
        for name in ("munge", "ctld", "db", "slurmd.n1", "slurmd.n2"):
            (run / name).mkdir(mode=0o755)
        (munge / "key").write_bytes(os.urandom(128))
        (munge / "key").chmod(0o600)
        ports = dict(zip(("ctld", "dbd", "n1", "n2"), _free_ports(4), strict=True))
        values = {"run": run, "host": socket.gethostname().split(".")[0], "first": int(time.time()) % 60_000_000, **ports}
        for name, text in (("slurm.conf", CONF), ("slurmdbd.conf", DBD)):
            (run / name).write_text(text.format(**values))
            (run / name).chmod(0o600)
        (run / "init.sql").write_text(SQL)
        hosts = Path("/etc/hosts")  # a job's processes meet at the first node's name
        if " n1 n2" not in hosts.read_text():
            hosts.write_text(hosts.read_text() + "127.0.0.1 n1 n2\n")
        self._spawn("munged", "--foreground", f"--key-file={munge}/key", f"--socket={munge}/socket", f"--pid-file={munge}/pid",
                    f"--log-file={munge}/log", f"--seed-file={munge}/seed")  # fmt: skip
        self.call("mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={run}/db", "--skip-test-db",
                  "--auth-root-authentication-method=normal", check=True)  # fmt: skip
        self._spawn("mariadbd", "--no-defaults", "--user=root", f"--datadir={run}/db", "--skip-networking",
                    f"--socket={run}/mysql.sock", f"--init-file={run}/init.sql", "--innodb-lock-wait-timeout=900")  # fmt: skip
        until(lambda: self.call("mariadb", "--no-defaults", "-uslurm", "-pslurm", "-e", "select 1").returncode == 0, "mariadbd")
        self._spawn("slurmdbd", "-D")
        until(lambda: self.call("sacctmgr", "-n", "show", "cluster").returncode == 0, "slurmdbd")
        self._spawn("slurmctld", "-D")
        until(lambda: self.call("scontrol", "ping").returncode == 0, "slurmctld")
        for words in (("add", "account", "lab"), ("add", "user", "root", "account=lab")):
            self.call("sacctmgr", "-i", *words, check=True)
        for node in ("n1", "n2"):
            self.start_node(node)
        until(lambda: self.call("sinfo", "-h", "-N", "-p", "main", "-o", "%T").stdout.split() == ["idle", "idle"], "two nodes")

    def start_node(self, node: str) -> None:
        self._spawn("slurmd", "-D", "-N", node, NODE=node)

    def fail_node(self, node: str) -> None:
        """Kill a node's daemon and everything that runs on it."""
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
                if f"SLURM_CONF={self.run}/slurm.conf" in words and {f"NODE={node}", f"SLURMD_NODENAME={node}"} & set(words):
                    os.kill(int(entry.name), signal.SIGKILL)

    def call(self, *command: str, check: bool = False, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=timeout, check=check)

    def stop(self) -> None:
        self.call("scancel", "--user=root")
        until(lambda: not self.call("squeue", "-h").stdout, "jobs to end")
        for process in reversed(self.children):
            process.terminate()
            process.wait(timeout=60)
        shutil.rmtree(self.run)

    def _spawn(self, program: str, *words: str, **variables: str) -> None:
        path = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/usr/bin")
        with open(self.run / f"{program}.log", "a") as log:
            self.children.append(subprocess.Popen([path, *words], env=self.environment | variables, stdout=log, stderr=log))


def until(condition: Callable[[], object], what: str, seconds: float = 60, every: float = 0.2) -> None:
    """Wait for `condition`, which an idle machine takes at most `seconds` for. Raises TimeoutError."""
    end = time.monotonic() + PATIENCE * seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {PATIENCE * seconds} s for {what}")
        time.sleep(every)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
