"""Process 1 of the container of one test.

Reads a configuration (JSON), builds the root file system, runs setup, test and cleanup, each with a time limit, and
writes `result.json` and a log of each phase. When it ends, the kernel kills everything that the test started and
drops its mounts.
"""
import ctypes
import json
import os
import pwd
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time

from . import devices
from .layer import USER_ID
from .suite import SUITE

MS_RDONLY, MS_NOSUID, MS_REMOUNT, MS_BIND, MS_REC = 1, 2, 32, 4096, 16384
LOG_MAX_BYTES = 64 << 20
SYSTEM_FOLDERS = ["/usr/local/bin", "/usr/local/sbin", "/usr/bin", "/usr/sbin", "/usr/lib/zfs-linux"]
# Commands that are OpenZFS's own in each container: Millpond has none.
OPENZFS = ["zdb", "zhack", "zstream", "ztest", "raidz_test", "zgenhostid", "zfs_ids_to_path"]
CHARACTER_DEVICES = [
    ("null", 1, 3, 0o666),
    ("zero", 1, 5, 0o666),
    ("full", 1, 7, 0o666),
    ("random", 1, 8, 0o666),
    ("urandom", 1, 9, 0o666),
    ("kmsg", 1, 11, 0o644),
    ("tty", 5, 0, 0o666),
    ("fuse", 10, 229, 0o666),
    ("loop-control", 10, 237, 0o660),
]
libc = ctypes.CDLL(None, use_errno=True)


def mount(source, target, kind=None, flags=0, data=None):
    words = [word.encode() if word is not None else None for word in (source, target, kind)]
    if libc.mount(*words, flags, data.encode() if data else None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {source} on {target} ({kind} {data}): {os.strerror(number)}")


def bind(source, target, read_only=False, recursive=False):
    os.makedirs(target, exist_ok=True)
    mount(source, target, None, MS_BIND | (MS_REC if recursive else 0))
    if read_only:
        mount(None, target, None, MS_BIND | MS_REMOUNT | MS_RDONLY)


def enter_root(config):
    """Builds the root and enters it: the machine's own files, read only, below our layer and one in memory.

    Returns the loop devices of other programs."""
    top = config["scratch"]
    mount("zts", top, "tmpfs", 0, "mode=755,size=75%")
    for name in ("upper", "work", "root"):
        os.mkdir(f"{top}/{name}", 0o755)
    root = f"{top}/root"
    lower = f"{config['layer']}:/"
    mount("overlay", root, "overlay", 0, f"lowerdir={lower},upperdir={top}/upper,workdir={top}/work")
    for name in ("proc", "sys", "dev", "run", "tmp", "zts/log", "zts/cmds", "zts/bin", "zts/cwd", "var/tmp"):
        os.makedirs(f"{root}/{name}", exist_ok=True)
    mount("proc", root + "/proc", "proc")
    bind("/sys", root + "/sys", recursive=True)
    mount(None, root + "/sys", None, MS_BIND | MS_REMOUNT | MS_RDONLY)
    foreign = make_dev(root + "/dev", config["disks"])
    mount("run", root + "/run", "tmpfs", 0, "mode=755")
    for name in ("lock", "sudo", "user"):
        os.mkdir(f"{root}/run/{name}")
    os.chmod(root + "/run/lock", 0o1777)
    mount("tmp", root + "/tmp", "tmpfs", 0, "mode=1777")
    bind(config["files"], root + "/var/tmp")
    os.chmod(root + "/var/tmp", 0o1777)
    bind(config["log"], root + "/zts/log")
    bind(config["commands"], root + "/zts/cmds", read_only=True)
    os.chroot(root)
    os.chdir("/")
    os.chmod("/zts/cwd", 0o1777)
    for name in ("/etc/hostid", "/etc/zfs/zpool.cache"):
        if os.path.lexists(name):
            os.unlink(name)
    return foreign


def make_dev(dev, disks):
    mount("dev", dev, "tmpfs", MS_NOSUID, "mode=755")
    for name, major, minor, mode in CHARACTER_DEVICES:
        devices.make_node(f"{dev}/{name}", stat.S_IFCHR, major, minor, mode)
    for name in ("shm", "pts", "mapper", "zvol", "disk"):
        os.mkdir(f"{dev}/{name}")
    os.chmod(f"{dev}/shm", 0o1777)
    mount("devpts", dev + "/pts", "devpts", 0, "newinstance,ptmxmode=0666,mode=0620")
    links = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
    for name, target in links.items():
        os.symlink(target, f"{dev}/{name}")
    foreign = {number for number, file in devices.loops().items() if file and f"loop{number}" not in disks}
    devices.make_nodes(foreign, dev)
    return foreign


def executable(name, folders):
    for folder in folders:
        path = f"{folder}/{name}"
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def make_path():
    """Fills the only folder on PATH: shims, Millpond's commands, the suite's and the system's tools."""
    variables = "echo $SYSTEM_FILES_COMMON $SYSTEM_FILES_LINUX; echo $ZFS_FILES; echo $ZFSTEST_FILES"
    script = f". {SUITE}/include/commands.cfg; {variables}"
    lines = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.splitlines()
    system, zfs, suite = (line.split() for line in lines)
    links = {name: executable(name, SYSTEM_FOLDERS) for name in system + ["fusermount3", "fusermount", "sudo"]}
    links |= {name: executable(name, [SUITE + "/bin"]) for name in suite}
    for name in zfs:
        links[name] = executable(name, ["/zts/cmds"] + (SYSTEM_FOLDERS if name in OPENZFS else []))
    links |= {name: f"/zts/cmds/{name}" for name in os.listdir("/zts/cmds")}
    links |= {"fsck": "/sbin/fsck.ext4", "newfs": "/sbin/mkfs.ext4"}
    links |= {"compress": links.get("gzip"), "uncompress": links.get("gunzip")}
    hidden = ("absent",)
    links |= {name: f"/zts/shims/{name}" for name in os.listdir("/zts/shims") if name not in hidden}
    for name, target in links.items():
        if target:
            os.symlink(target, f"/zts/bin/{name}")
            # Test users get the group of `zfs`, which must not be root's.
            os.lchown(f"/zts/bin/{name}", USER_ID, USER_ID)
    # mount(8) calls it for `mount -t zfs`.
    if os.path.lexists("/usr/sbin/mount.zfs"):
        os.unlink("/usr/sbin/mount.zfs")
    os.symlink(executable("mount.zfs", ["/zts/cmds"]) or "/zts/shims/absent", "/usr/sbin/mount.zfs")


def environment(disks):
    """The environment that the suite's own driver would give to a test."""
    env = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "STF_PATH": "/zts/bin",
        "STF_SUITE": SUITE,
        "STF_TOOLS": "/usr/share/zfs/test-runner",
        "DISKS": " ".join(disks),
        "FILEDIR": "/var/tmp",
        "TMPDIR": "/var/tmp",
        "KEEP": "rpool",
        "__ZFS_POOL_EXCLUDE": "rpool",
        "TESTFAIL_CALLBACKS": "",
        "HOME": "/root",
        "USER": "root",
        "LOGNAME": "root",
        "TERM": "dumb",
        "SHELL": "/bin/sh",
        "LC_ALL": "C",
        "LANG": "C",
        "ZTS_DIR": "/usr/share/zfs",
        "BIN_DIR": "/usr/bin",
        "SBIN_DIR": "/sbin",
        "LIBEXEC_DIR": "/usr/lib/zfs-linux",
        "ZFS_SH": "/zts/shims/absent",
        "SPA_CONFIG_PATH": "/var/lib/millpond/zpool.cache",
        # OpenZFS's `zpool freeze` needs no permission.
        "MILLPOND_TUNABLES": "millpond_allow_freeze=1",
    }
    env |= {name.upper(): f"/zts/bin/{name}" for name in ("zdb", "zfs", "zpool", "ztest")}
    script = ". $STF_SUITE/include/default.cfg && env -0"
    text = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=True).stdout
    env = dict(line.split("=", 1) for line in text.split("\0") if "=" in line)
    for name in ("PWD", "OLDPWD", "SHLVL", "_"):
        env.pop(name, None)
    return env | {"PATH": "/zts/bin"}


class Phases:
    """Runs scripts one after the other and reaps every process that ends."""

    def __init__(self, env, foreign):
        self.env = env
        self.foreign = foreign
        self.ended = {}
        # A process that ended must not be seen as a zombie by the test that killed it.
        self.news, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def wait(self, seconds):
        """Waits until a process ends, at most so long."""
        if select.select([self.news], [], [], seconds)[0]:
            os.read(self.news, 4096)

    def tick(self):
        devices.announce_partitions(self.foreign)
        devices.make_nodes(self.foreign)

    def reap(self):
        while True:
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if process == 0:
                return
            self.ended[process] = status

    def run(self, name, script, limit_s, user):
        log = os.open(f"/zts/log/{name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
        begin = time.monotonic()
        self.ended.clear()
        process = os.fork()
        if process == 0:
            become(script, dict(self.env), user, log)
        killed, next_tick = "", begin
        while process not in self.ended:
            self.reap()
            elapsed = time.monotonic() - begin
            if elapsed > limit_s or os.fstat(log).st_size > LOG_MAX_BYTES:
                killed = "time limit" if elapsed > limit_s else "a log of 64 MiB"
                self.kill(process)
                break
            self.wait(0.02 if elapsed < 2 else 0.1)
            if time.monotonic() >= next_tick:
                self.tick()
                next_tick = time.monotonic() + (0.2 if elapsed < 2 else 1)
        os.close(log)
        status = self.ended.get(process)
        code = None if killed or status is None else os.waitstatus_to_exitcode(status)
        self.tick()
        return {"rc": code, "killed": killed, "s": round(time.monotonic() - begin, 2)}

    def kill(self, process):
        with open("/zts/log/stuck.txt", "w") as file:
            subprocess.run(["ps", "axfo", "pid,ppid,stat,etimes,wchan:20,args"], stdout=file, stderr=file, check=False)
        doomed = descendants(process)
        for number in (signal.SIGTERM, signal.SIGKILL):
            signal_all(doomed, number)
            time.sleep(0.3)
        for _ in range(50):
            self.reap()
            if process in self.ended:
                return
            time.sleep(0.1)


def become(script, env, user, log):
    """Turns a new process into a script of the suite."""
    try:
        os.setsid()
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir("/zts/cwd")
        os.umask(0o022)
        if user != "root":
            entry = pwd.getpwnam("zts")
            os.initgroups("zts", entry.pw_gid)
            os.setgid(entry.pw_gid)
            os.setuid(entry.pw_uid)
            env |= {"HOME": entry.pw_dir, "USER": "zts", "LOGNAME": "zts"}
        os.execve(script, [script], env)
    except BaseException as error:
        os.write(2, f"cannot run {script}: {error}\n".encode())
    finally:
        os._exit(127)


def parents():
    """{process: its parent} of the container."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    found[int(name)] = int(file.read().rsplit(")", 1)[1].split()[1])
            except OSError:
                pass
    return found


def descendants(process):
    found, of = [process], parents()
    for parent in found:
        found += [child for child, its in of.items() if its == parent]
    return found


def signal_all(processes, number):
    for process in processes:
        try:
            os.kill(process, number)
        except OSError:
            pass


def end_others(phases):
    """Lets daemons end in order; the kernel kills the rest."""
    for number, rounds in ((signal.SIGTERM, 20), (signal.SIGKILL, 10)):
        for _ in range(rounds):
            others = [process for process in parents() if process != 1]
            if not others:
                return
            signal_all(others, number)
            time.sleep(0.1)
            phases.reap()
            number = 0


def script_of(folder, name):
    names = (f"{SUITE}/{folder}/{name}{suffix}" for suffix in ("", ".ksh", ".sh"))
    return next((path for path in names if os.path.isfile(path)), None)


def main(path):
    with open(path) as file:
        config = json.load(file)
    foreign = enter_root(config)
    socket.sethostname("ztshost")
    make_path()
    if shutil.which("ip"):
        subprocess.run(["ip", "link", "set", "lo", "up"], stderr=subprocess.DEVNULL, check=False)
    phases = Phases(environment(config["disks"]), foreign)
    steps = [("setup", config["setup"], "root"), ("test", config["test"], config["user"]), ("cleanup", config["cleanup"], "root")]
    result = {"phases": {}}
    for name, script, user in steps:
        if not script:
            continue
        found = script_of(config["folder"], script)
        if found:
            result["phases"][name] = phases.run(name, found, config["limit_s"], user)
        else:
            result["phases"][name] = {"rc": 127, "killed": "", "s": 0, "absent": True}
        ended = result["phases"][name]
        if ended["killed"] or (name == "setup" and ended["rc"] != 0):
            break
    with open("/zts/unsupported") as file:
        result["unsupported"] = sorted(set(file.read().split("\n")) - {""})
    result["left_loops"] = devices.detach_left(foreign, config["disks"])
    with open("/zts/log/result.json", "w") as file:
        json.dump(result, file)
    end_others(phases)


if __name__ == "__main__":
    main(sys.argv[1])
