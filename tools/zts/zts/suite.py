"""The tests of the suite, and which of them are chosen."""
import ast
import fnmatch
import re
import sys
from dataclasses import dataclass

SUITE = "/usr/share/zfs/zfs-tests"
FUNCTIONAL = "tests/functional/"


@dataclass(frozen=True)
class Test:
    """A test as the suite's run files describe it. Its name in lists is `group/name`."""

    group: str
    name: str
    folder: str
    setup: str
    cleanup: str
    user: str
    limit_s: int

    @property
    def id(self):
        return f"{self.group}/{self.name}"


KEYS = {"pre": "setup", "post": "cleanup", "user": "root", "timeout": "600"}
SECTION = re.compile(r"^\[([^\]\n']+)\]\n(.*?)(?=^\[[^\]\n']+\]\n|\Z)", re.S | re.M)
TESTS = re.compile(r"^tests *= *(\[.*?\])", re.S | re.M)


def all_tests(root):
    """All tests of the suite below `root` by their names, in the order of the run files."""
    tests = {}
    for name in ("common", "linux"):
        with open(f"{root}/usr/share/zfs/runfiles/{name}.run") as file:
            text = file.read()
        defaults = dict(KEYS)
        for section, body in SECTION.findall(text):
            values = dict(defaults)
            for key in KEYS:
                found = re.search(rf"^{key} *=[ \t]*(.*)$", body, re.M)
                if found:
                    values[key] = found.group(1).strip()
            if section == "DEFAULT":
                defaults = values
                continue
            listed = TESTS.search(body)
            folder = section.split(":")[0]
            for test in ast.literal_eval(listed.group(1)) if listed else []:
                group = folder.removeprefix(FUNCTIONAL)
                test = Test(group, test, folder, values["pre"], values["post"], values["user"], int(values["timeout"]))
                tests.setdefault(test.id, test)
    return tests


def read_table(path):
    """The lines of a table without comments and empty lines, split at tabs."""
    with open(path) as file:
        lines = [line.rstrip("\n") for line in file]
    return [line.split("\t") for line in lines if line.strip() and not line.startswith("#")]


def chosen(tests, wanted, listed):
    """The tests whose names, ends of names or groups (with wildcards) are wanted; by default all that are listed."""
    if not wanted:
        unknown = [name for name in listed if name not in tests]
        if unknown:
            sys.exit(f"zts: the suite has no test {unknown[0]}")
        return [tests[name] for name in listed]
    names = []
    for word in wanted:
        word = word.removesuffix(".ksh")
        found = [name for name, test in tests.items() if name == word or fnmatch.fnmatch(test.group, word)]
        found = found or [name for name in tests if name.endswith("/" + word)]
        if not found:
            sys.exit(f"zts: the suite has no test and no group {word}")
        names += found
    return [tests[name] for name in dict.fromkeys(names)]
