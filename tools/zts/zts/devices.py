"""Loop devices: the disks of a container, and what a test attached itself."""
import errno
import fcntl
import glob
import os
import stat
import struct
import subprocess

LOOP_MAJOR = 7
LOOP_GET_STATUS64 = 0x4C05
LO_FLAGS_PARTSCAN = 8


def losetup(*arguments, check=True):
    return subprocess.run(["losetup", *arguments], capture_output=True, text=True, check=check).stdout.strip()


def loops():
    """{number: backing file, or an empty text} of all loop devices of the kernel."""
    found = {}
    for folder in glob.glob("/sys/block/loop*"):
        found[int(os.path.basename(folder)[4:])] = first_line(folder + "/loop/backing_file")
    return found


def first_line(path):
    try:
        with open(path) as file:
            return file.readline().strip()
    except OSError:
        return ""


def behind(number):
    """(device, inode) of the file behind a loop device, or None."""
    try:
        fd = os.open(f"/dev/loop{number}", os.O_RDONLY)
    except OSError:
        return None
    try:
        status = bytearray(232)
        fcntl.ioctl(fd, LOOP_GET_STATUS64, status)
        return struct.unpack_from("QQ", status)
    except OSError:
        return None
    finally:
        os.close(fd)


def status_of(number):
    """The bytes of what the kernel says of a loop device with a file; None if its file gives no answer any more."""
    status = bytearray(232)
    with open(f"/dev/loop{number}", "rb") as device:
        try:
            fcntl.ioctl(device, LOOP_GET_STATUS64, status)
        except OSError as error:
            if error.errno in (errno.ENOTCONN, errno.ECONNABORTED):
                return None
            raise
    return bytes(status)


def of_dead_daemons():
    """The numbers of the loop devices of volumes whose daemon was killed. Those of a living one belong to others: another
    run, or someone who uses this machine."""
    found = set()
    for number, file in loops().items():
        try:
            if file == "/" and status_of(number) is None:
                found.add(number)
        except OSError:
            continue
    return found


def is_volume_of(number, devices):
    """Whether a loop device shows a volume of a daemon whose state directory is on one of these devices."""
    try:
        status = status_of(number)
    except OSError:
        return False
    words = (status or b"")[56:120].rstrip(b"\0").split(b" ")
    if len(words) < 2 or words[0] != b"millpond":
        return False
    return int(words[1].split(b":")[0], 16) in devices


def make_node(path, kind, major, minor, mode=0o660):
    mask = os.umask(0)
    try:
        os.mknod(path, kind | mode, os.makedev(major, minor))
    except FileExistsError:
        pass
    finally:
        os.umask(mask)


def make_nodes(foreign, dev="/dev"):
    """Makes the nodes of all loop devices and their partitions, except those of programs outside the container."""
    wanted = set()
    for folder in glob.glob("/sys/block/loop*"):
        number = int(os.path.basename(folder)[4:])
        if number in foreign:
            continue
        make_node(f"{dev}/loop{number}", stat.S_IFBLK, LOOP_MAJOR, number)
        for part in glob.glob(f"{folder}/loop{number}p*"):
            numbers = first_line(part + "/dev").split(":")
            if len(numbers) != 2:
                continue
            major, minor = map(int, numbers)
            node = f"{dev}/{os.path.basename(part)}"
            wanted.add(node)
            if os.path.exists(node) and os.stat(node).st_rdev != os.makedev(major, minor):
                os.unlink(node)
            make_node(node, stat.S_IFBLK, major, minor)
    for node in glob.glob(f"{dev}/loop*p*"):
        if node not in wanted:
            os.unlink(node)


def announce_partitions(foreign):
    """Tells a kernel that cannot read GPT labels the partitions of our disks."""
    for number, file in loops().items():
        if not file or number in foreign or glob.glob(f"/sys/block/loop{number}/loop{number}p*"):
            continue
        try:
            status = status_of(number) or bytes(232)
            if status[56:].startswith(b"millpond ") and not struct.unpack_from("I", status, 52)[0] & LO_FLAGS_PARTSCAN:
                # A volume that is to have no partitions.
                continue
            with open(f"/dev/loop{number}", "rb") as device:
                head = device.read(4104)
        except OSError:
            continue
        if b"EFI PART" in (head[512:520], head[4096:4104]):
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            subprocess.run(["partx", "-a", f"/dev/loop{number}"], check=False, **quiet)


def detach_left(foreign, disks):
    """Detaches the loop devices over files of this container that a test left. Returns what was left."""
    devices = set()
    with open("/proc/self/mountinfo") as file:
        for line in file:
            fields = line.split()
            if fields[fields.index("-") + 1].startswith(("fuse", "tmpfs", "overlay", "zfs")):
                devices.add(os.makedev(*map(int, fields[2].split(":"))))
    home = os.stat("/var/tmp").st_dev
    inodes = set()
    for folder, _, names in os.walk("/var/tmp"):
        for name in names:
            try:
                status = os.lstat(f"{folder}/{name}")
            except OSError:
                continue
            if status.st_dev == home:
                inodes.add(status.st_ino)
    left = []
    for number, file in loops().items():
        if not file or number in foreign or f"loop{number}" in disks:
            continue
        place = behind(number)
        is_own = place and (place[0] in devices or (place[0] == home and place[1] in inodes))
        if is_own or is_volume_of(number, devices):
            left.append(f"loop{number}={file}")
            subprocess.run(["losetup", "-d", f"/dev/loop{number}"], timeout=20, check=False)
    return left


def detach(device, folder):
    """Detaches a disk of a container that has ended, and any loop device over a file in its folder."""
    name = os.path.basename(device)
    if glob.glob(f"/sys/block/{name}/{name}p*"):
        subprocess.run(["partx", "-d", device], capture_output=True, check=False)
    losetup("-d", device, check=False)
    for number, file in loops().items():
        if file and folder in file:
            losetup("-d", f"/dev/loop{number}", check=False)
