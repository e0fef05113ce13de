"""What came of a test, and the line of its log that explains a failure."""
import os
import re

FOUND_BY_SUITE = re.compile(r"^(ERROR|UNRESOLVED|UNSUPPORTED|UNTESTED):")
RETRY = re.compile(r"Retry in \d+ seconds")
CHATTER = re.compile(r"^(NOTE|SUCCESS|ASSERTION)")
LINE_MAX = 300


def of(phases, trouble, log):
    """(PASS, FAIL, SKIP or KILLED; the phase; the line that explains it)."""
    for name in ("setup", "test"):
        phase = phases.get(name)
        if phase is None:
            if name == "test":
                return "FAIL", "container", trouble or "the test did not run"
            continue
        path = f"{log}/{name}.log"
        if phase.get("absent"):
            return "SKIP", name, "the package does not have this script"
        if phase["killed"]:
            lines = [line for line in read(path) if line.strip()]
            return "KILLED", name, f"{phase['killed']} after {phase['s']} s: {lines[-1][:200] if lines else ''}"
        if phase["rc"] != 0:
            return "SKIP" if phase["rc"] == 4 else "FAIL", name, explanation(path)
    return "PASS", "", ""


def read(path):
    if not os.path.exists(path):
        return []
    with open(path, errors="replace") as file:
        return file.read(4 << 20).splitlines()


def explanation(path):
    """The line that explains a failure, with one line of what the command said."""
    lines = read(path)
    # What follows this line belongs to the clean-up.
    notes = (number for number, line in enumerate(lines) if line.startswith("NOTE: Performing local cleanup"))
    end = next(notes, len(lines))
    before, after = lines[:end] or lines, lines[end:]
    if said_pass(before):
        for number, line in enumerate(after):
            if line.startswith("ERROR:") and not RETRY.search(line):
                return ("in its own clean-up: " + with_words(line, after[max(0, number - 1) : number]))[:LINE_MAX]
    for number in range(len(before) - 1, -1, -1):
        line = before[number]
        if FOUND_BY_SUITE.match(line) and not RETRY.search(line):
            if any(rest.strip() and not CHATTER.match(rest) and not rest.startswith("ERROR") for rest in before[number + 1 :]):
                break
            return with_words(line, before[max(0, number - 3) : number])[:LINE_MAX]
    spoken = [line.strip() for line in before if line.strip() and not CHATTER.match(line)]
    return (spoken or before or ["(no output)"])[-1][:LINE_MAX]


def said_pass(lines):
    """Whether the last line repeats the assertion, as a test does that passes."""
    claim = " ".join(" ".join(line.split()) for line in lines if line.startswith("ASSERTION"))
    spoken = [" ".join(line.split()) for line in lines if line.strip() and not re.match(r"^(NOTE|SUCCESS)", line)]
    return bool(spoken) and spoken[-1] in claim


def with_words(line, before):
    """The line, and the last words of a command before it."""
    words = [word.strip() for word in before if word.strip() and not CHATTER.match(word) and not word.startswith("ERROR")]
    return f"{line} | {words[-1]}" if words else line
