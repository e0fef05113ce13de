"""The page of the documentation that says which tests pass."""
import collections
import fnmatch

RESULTS = ("PASS", "FAIL", "SKIP", "KILLED")
LINE_MAX = 160

HEAD = """# Conformance

What OpenZFS's own test suite says of Millpond's `zpool` and `zfs`. `make zts` writes this page: it runs the tests of
`tools/zts/tests.tsv`, those that a ZFS in user space can pass, with the built programs in containers. No test is
treated in a special way, in the runner or in the programs.

Measured on {revision}, OpenZFS's suite {suite}. Each phase of a test had at most {limit} s.
"""


def markdown(results, reasons, revision, suite, limit_s, listed):
    """The whole page. `reasons` is a pair: why tests can never pass, by test, and which commands are not built, by the pattern
    of their tests. `listed` is the number of tests of the list."""
    never, not_built = reasons
    possible = [row for row in results if row["test"] not in never]
    passed = sum(row["result"] == "PASS" for row in possible)
    hollow = sum(row["result"] == "PASS" and bool(row["unsupported"]) for row in possible)
    lines = [HEAD.format(revision=revision, suite=suite, limit=limit_s)]
    lines.append(f"**{passed} of {len(possible)} tests pass ({100 * passed / max(1, len(possible)):.1f} %).**")
    built = [row for row in possible if not any(fnmatch.fnmatchcase(row["test"], pattern) for pattern in not_built)]
    passed = sum(row["result"] == "PASS" for row in built)
    lines.append(f"Of what is built, **{passed} of {len(built)} pass ({100 * passed / max(1, len(built)):.1f} %)**.")
    if len(results) < listed:
        lines.append(f"The run was interrupted: {listed - len(results)} of the {listed} listed tests did not run.")
    if hollow:
        lines.append(f"{hollow} of those that pass set a tunable that Millpond does not know; it was only remembered.")
    lines += ["", "## By group", "", "| group | pass | fail | skip | killed |", "|---|---|---|---|---|"]
    groups = collections.defaultdict(collections.Counter)
    for row in possible:
        groups[row["group"]][row["result"]] += 1
    for group, counts in sorted(groups.items()):
        lines.append(f"| {group} | " + " | ".join(str(counts[result]) for result in RESULTS) + " |")
    lines += ["", "## Tests that do not pass", "", "| test | result | where it stopped |", "|---|---|---|"]
    for row in sorted(possible, key=lambda row: row["test"]):
        if row["result"] != "PASS":
            phase = f" ({row['phase']})" if row["phase"] not in ("", "test") else ""
            lines.append(f"| {row['test']} | {row['result']}{phase} | {cell(row['line'])} |")
    lines += reasoned("Not built", "tests", not_built)
    lines += reasoned("Tests that can never pass", "test", never)
    return "\n".join(lines) + "\n"


def reasoned(title, what, reasons):
    """A section with a reason for each test or pattern of tests."""
    rows = [f"| {test} | {cell(why)} |" for test, why in sorted(reasons.items())]
    return ["", f"## {title}", "", *([f"| {what} | why |", "|---|---|", *rows] if rows else ["None."])]


def cell(text):
    """The text for a cell of a table."""
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    text = text if len(text) <= LINE_MAX else text[:LINE_MAX] + "…"
    return "`" + text.replace("|", "¦").replace("`", "'") + "`" if text else ""
