"""Runs each test in a container: the disks, the processes and the folders outside it."""
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

from . import devices, outcome

DISKS = 3
DISK_BYTES = 4 << 30
NAMESPACES = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--ipc", "--uts", "--net", "--propagation", "private"]
# Settings of the machine that are in no namespace: a killed test may leave them changed.
SETTINGS = [
    "kernel/core_pattern",
    "kernel/core_uses_pid",
    "vm/dirty_expire_centisecs",
    "vm/dirty_writeback_centisecs",
    "vm/dirty_background_ratio",
    "vm/dirty_ratio",
]
attaching = threading.Lock()


@dataclass
class Stage:
    """What all containers share."""

    here: str
    layer: str
    commands: str
    scratch: str
    logs: str
    limit_s: int


def settings():
    found = {}
    for name in SETTINGS:
        with open(f"/proc/sys/{name}") as file:
            found[name] = file.read()
    return found


def restore(saved):
    for name, value in settings().items():
        if value != saved[name]:
            with open(f"/proc/sys/{name}", "w") as file:
                file.write(saved[name])


def run(stage, test, number):
    """Runs one test. Returns its row of the results."""
    folder, log = f"{stage.scratch}/{number:04d}", f"{stage.logs}/{test.id}"
    shutil.rmtree(log, ignore_errors=True)
    for path in (log, f"{folder}/files", f"{folder}/root"):
        os.makedirs(path)
    begin = time.monotonic()
    disks, trouble = [], ""
    before = devices.of_dead_daemons()
    try:
        disks = attach(folder)
        trouble = contain(stage, test, folder, log, disks)
    finally:
        # A daemon that was killed leaves them behind.
        for number in devices.of_dead_daemons() - before:
            devices.losetup("-d", f"/dev/loop{number}", check=False)
        for disk in disks:
            devices.detach(disk, folder)
        shutil.rmtree(folder, ignore_errors=True)
    try:
        with open(f"{log}/result.json") as file:
            result = json.load(file)
    except (OSError, ValueError):
        result = {}
        trouble = trouble or " / ".join(outcome.read(f"{log}/container.log")[-5:])[-300:]
    verdict, phase, line = outcome.of(result.get("phases", {}), trouble, log)
    return {
        "test": test.id,
        "group": test.group,
        "result": verdict,
        "phase": phase,
        "line": line,
        "seconds": round(time.monotonic() - begin, 1),
        "unsupported": result.get("unsupported", []),
    }


def attach(folder):
    disks = []
    for number in range(DISKS):
        path = f"{folder}/files/file-vdev{number}"
        with open(path, "w") as file:
            file.truncate(DISK_BYTES)
        with attaching:
            disks.append(devices.losetup("-P", "--show", "-f", path))
    return disks


def contain(stage, test, folder, log, disks):
    """Runs the container of a test to its end. Returns what went wrong with the container itself."""
    limit_s = min(test.limit_s, stage.limit_s)
    config = {
        "scratch": f"{folder}/root",
        "files": f"{folder}/files",
        "layer": stage.layer,
        "commands": stage.commands,
        "log": log,
        "disks": [os.path.basename(disk) for disk in disks],
        "folder": test.folder,
        "setup": test.setup,
        "test": test.name,
        "cleanup": test.cleanup,
        "user": test.user,
        "limit_s": limit_s,
    }
    with open(f"{folder}/config.json", "w") as file:
        json.dump(config, file)
    program = [sys.executable, "-m", "zts.container", f"{folder}/config.json"]
    with open(f"{log}/container.log", "w") as file:
        process = subprocess.Popen(
            NAMESPACES + program, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, cwd=stage.here
        )
        try:
            process.wait(3 * limit_s + 120)
            return ""
        except subprocess.TimeoutExpired:
            return "the container did not end"
        finally:
            if process.poll() is None:
                abort(process)


def abort(process):
    """Kills a container that does not end: its process 1, then the FUSE connections that it has."""
    children = devices.first_line(f"/proc/{process.pid}/task/{process.pid}/children").split()
    connections = set()
    for child in children:
        connections |= fuse_connections(child)
        try:
            os.kill(int(child), signal.SIGKILL)
        except OSError:
            pass
    for _ in range(3):
        try:
            process.wait(10)
            return
        except subprocess.TimeoutExpired:
            for number in connections - fuse_connections("self"):
                for path in glob.glob(f"/sys/fs/fuse/connections/{number}/abort"):
                    with open(path, "w") as file:
                        file.write("1")
            process.kill()


def fuse_connections(process):
    """The minor numbers of the FUSE mounts that a process sees."""
    found = set()
    try:
        with open(f"/proc/{process}/mountinfo") as file:
            for line in file:
                fields = line.split()
                if fields[fields.index("-") + 1].startswith("fuse"):
                    found.add(fields[2].split(":")[1])
    except OSError:
        pass
    return found
