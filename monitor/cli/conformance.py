"""`outrace conformance FILE...`: recorded answers of a real kubelet, asked of this policy."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import click

from monitor import documents
from monitor.cli.output import emit, output_option, table_lines
from monitor.errors import EXIT_FINDINGS, EXIT_OK, ConfigError

#: Bytes of a file, unpacked: the largest recorded one has 10 MB.
_MOST = 64 << 20


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--show", "show", type=click.IntRange(0), default=5, show_default=True, help="Failures to print.")
@output_option
def conformance(files: tuple[Path, ...], show: int, output: str) -> int:
    """Compare the policy with recorded answers of a kubelet; exit 4 if any differs.

    FILE is a JSON array of cases, or one case per line; a name ending in .gz is unpacked.
    """
    from monitor.policy.conformance import CaseError, check_case

    ops: dict[str, dict[str, Any]] = {}
    for path in files:
        here = 0
        for here, case in enumerate(_cases(path), 1):
            try:
                difference = check_case(case)
            except CaseError as error:
                name = case.get("id") if isinstance(case, dict) else None
                raise ConfigError(
                    f"{path}: case {here}{f' ({name})' if name else ''}: {error}", "give files of recorded cases"
                ) from None
            counts = ops.setdefault(case["op"], {"passed": 0, "total": 0, "failed": []})
            counts["total"] += 1
            counts["passed"] += not difference
            if difference:
                counts["failed"].append(case["id"])
                if sum(len(each["failed"]) for each in ops.values()) <= show:
                    click.echo(f"{case['id']} ({case['op']}): {difference}", err=True)
        click.echo(f"{path.name}: {here} cases", err=True)

    passed, total = (sum(counts[key] for counts in ops.values()) for key in ("passed", "total"))
    rows = [(op, counts["passed"], counts["total"], len(counts["failed"])) for op, counts in ops.items()]
    rows.append(("all", passed, total, total - passed))
    answer = {"ops": ops, "passed": passed, "total": total}
    emit(output, answer, lambda: table_lines(("op", "passed", "total", "failed"), rows))
    return EXIT_OK if passed == total else EXIT_FINDINGS


def _cases(path: Path) -> list[Any]:
    """The cases of a file. Raises ConfigError."""
    remedy = "give files of recorded cases, packed ones as *.gz"
    try:
        with documents.open_file(path) as file:
            raw = (gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file).read(_MOST + 1)
        if len(raw) > _MOST:
            raise ConfigError(f"{path}: holds more than {_MOST >> 20} MiB", "split it")
        text = raw.decode("utf-8").strip()
        if not text:
            raise ConfigError(f"{path}: is empty", remedy)
        found = json.loads(text) if text[0] == "[" else [json.loads(line) for line in text.split("\n") if line.strip()]
    # Unreadable, damaged, other than UTF-8 or JSON, nested too deeply.
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: {documents.one_line(error)}", remedy) from None
    assert isinstance(found, list)
    return found
