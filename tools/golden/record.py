"""What is in the one imported pool, as the record of a golden case (testdata/golden/README.md has its form).

record.py CASE                        in the machine with the kernel module: the record, on standard output
record.py --finish RECORD IMAGE...    outside, after the export: the record with the images' sizes and digests
"""
import base64, hashlib, json, os, stat, subprocess, sys

KINDS = {stat.S_IFIFO: "fifo", stat.S_IFCHR: "chr", stat.S_IFDIR: "dir", stat.S_IFBLK: "blk",
         stat.S_IFREG: "file", stat.S_IFLNK: "symlink", stat.S_IFSOCK: "sock"}
AT = b"/pool/at"
ENTRIES_MAX = 3000
WHOLE_MAX = 128 << 20


def said(*command):
    return subprocess.run(command, check=True, capture_output=True).stdout.decode()


def rows(*command):
    done = subprocess.run(command, capture_output=True)
    if done.returncode:
        return None
    return [line.split("\t") for line in done.stdout.decode().splitlines()]


def properties(command, what):
    return {name: [value, source] for name, value, source in
            rows(command, "get", "-Hpo", "property,value,source", "all", what)}


def named(entry, key, name):
    try:
        entry[key] = name.decode()
    except UnicodeDecodeError:
        entry[key + "_b64"] = base64.b64encode(name).decode()


def data_ranges(fd, size):
    at, found = 0, []
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:
            break
        at = os.lseek(fd, start, os.SEEK_HOLE)
        found.append([start, at - start])
    return found


def digest(fd, ranges):
    total = hashlib.sha256()
    for start, length in ranges:
        os.lseek(fd, start, os.SEEK_SET)
        while length > 0:
            piece = os.read(fd, min(length, 1 << 20))
            if not piece:
                break
            total.update(piece)
            length -= len(piece)
    return total.hexdigest()


def entry_of(path, shown):
    status = os.lstat(path)
    entry = {}
    named(entry, "path", shown)
    entry |= {"type": KINDS[stat.S_IFMT(status.st_mode)], "ino": status.st_ino,
              "mode": "%04o" % stat.S_IMODE(status.st_mode), "uid": status.st_uid, "gid": status.st_gid,
              "nlink": status.st_nlink, "size": status.st_size, "blocks": status.st_blocks,
              "mtime_ns": status.st_mtime_ns, "ctime_ns": status.st_ctime_ns, "atime_ns": status.st_atime_ns}
    if entry["type"] == "file":
        fd = os.open(path, os.O_RDONLY | os.O_NOATIME)
        ranges = data_ranges(fd, status.st_size)
        if status.st_size > WHOLE_MAX:
            entry["data_sha256"] = digest(fd, ranges)
        else:
            entry["sha256"] = digest(fd, [[0, status.st_size]])
        if status.st_size >= 65536:
            entry["extents"] = ranges
        os.close(fd)
    if entry["type"] == "symlink":
        named(entry, "target", os.readlink(path))
    if entry["type"] in ("chr", "blk"):
        entry["rdev"] = [os.major(status.st_rdev), os.minor(status.st_rdev)]
    names = os.listxattr(path, follow_symlinks=False)
    if names:
        entry["xattrs"] = {name: base64.b64encode(os.getxattr(path, name, follow_symlinks=False)).decode()
                           for name in names}
    return entry


def walk(found, below):
    names = sorted(os.listdir(os.path.join(AT, below)))
    if len(names) > ENTRIES_MAX:
        found[-1]["entries_count"] = len(names)
        found[-1]["entries_sha256"] = hashlib.sha256(b"\n".join(names)).hexdigest()
        names = names[:5] + names[-5:]
    for name in names:
        shown = os.path.join(below, name)
        path = os.path.join(AT, shown)
        found.append(entry_of(path, shown))
        if found[-1]["type"] == "dir":
            walk(found, shown)


def tree(dataset):
    options = ["ro", "ro,zfsutil"]
    while subprocess.run(["mount", "-t", "zfs", "-o", options[0], dataset, AT], capture_output=True).returncode:
        if not options.pop(0) or not options:
            raise SystemExit("cannot mount " + dataset)
    found = [entry_of(AT, b".")]
    walk(found, b"")
    said("umount", AT.decode())
    return found


def volume(dataset):
    path = "/dev/zvol/" + dataset
    for _ in range(50):
        subprocess.run(["zvol-links"])
        if os.path.exists(path):
            break
    with open(path, "rb") as device:
        return hashlib.file_digest(device, "sha256").hexdigest()


def dataset_of(name, kind):
    found = {"name": name, "type": kind, "properties": properties("zfs", name)}
    if kind == "snapshot":
        found["holds"] = rows("zfs", "holds", "-H", name)
    if kind == "filesystem":
        for key, command in (("userspace", "userspace"), ("groupspace", "groupspace")):
            found[key] = rows("zfs", command, "-Hpno", "type,name,used,quota,objused,objquota", name) or []
        found["projectspace"] = rows("zfs", "projectspace", "-Hpo", "name,used,quota,objused,objquota", name) or []
    of_volume = said("zfs", "get", "-Ho", "value", "type", name.split("@")[0]) == "volume\n"
    if kind == "volume" or kind == "snapshot" and of_volume:
        if kind == "snapshot":
            said("zfs", "set", "snapdev=visible", name.split("@")[0])
        found["volume_sha256"] = volume(name)
        if kind == "snapshot":
            said("zfs", "inherit", "snapdev", name.split("@")[0])
    elif kind != "bookmark":
        found["tree"] = tree(name)
    return found


def record(case):
    [pool] = said("zpool", "list", "-Ho", "name").split()
    listed = [row for row in rows("zfs", "list", "-Ht", "all", "-o", "name,type", "-r", pool)]
    said("zfs", "unmount", "-a")
    datasets = [dataset_of(name, kind) for name, kind in listed]
    texts = {"zfs_version": open("/sys/module/zfs/version").read().strip(),
             "zpool_get": properties("zpool", pool), "zpool_status": said("zpool", "status", pool),
             "zpool_list_v": said("zpool", "list", "-Hpv", pool), "zpool_history": said("zpool", "history", "-il", pool)}
    about = open("/mnt/share/about").read()
    absent = open("/mnt/share/absent").read()
    sets = [[disk + ".img.zst" for disk in one.split("+")] for one in absent.split()]
    found = {"case": case, "pool": pool, "description": about, "may_be_absent": sets,
             "read_only_equals": "CASE.json", **texts, "datasets": datasets}
    if os.listdir("/k"):
        found["keys"] = "files in this folder; keylocation says which (file:///k/NAME)"
    return found


def finish(path, images):
    with open(path) as file:
        found = json.load(file)
    found["images"] = []
    for image in images:
        with open(image, "rb") as file:
            found["images"].append({"file": os.path.basename(image) + ".zst", "size": os.path.getsize(image),
                                    "sha256": hashlib.file_digest(file, "sha256").hexdigest()})
    return found


if sys.argv[1] == "--finish":
    told = finish(sys.argv[2], sorted(sys.argv[3:]))
else:
    told = record(sys.argv[1])
json.dump(told, sys.stdout, indent=1)
