# SPDX-License-Identifier: Apache-2.0
"""For pipeline.py: tables as text or Markdown, CSV, and the Gantt chart as text or as a picture."""

import csv
import importlib
from typing import Any, Dict, Iterator, List, Sequence, TextIO, Tuple

from pipeline_figures import BARE, representative, why_not_judged, worker_names
from pipeline_graph import STAGES, Settings, make_plans
from pipeline_modes import Outcome, Span

KINDS = {"hold": "Stages that hold the GIL", "release": "Stages that release the GIL"}
COLUMNS = 96  # of a Gantt chart in text
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class Table:
    """A heading, rows of strings, and lines below. The first column is text, the rest are figures."""

    def __init__(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *notes: str) -> None:
        self.title, self.columns, self.rows, self.notes = title, columns, rows, notes

    def text(self) -> str:
        widths = [max(len(row[column]) for row in [self.columns, *self.rows]) for column in range(len(self.columns))]
        lines = [self.title]
        for row in [self.columns, *self.rows]:
            cells = [
                cell.ljust(width) if index == 0 else cell.rjust(width)
                for index, (cell, width) in enumerate(zip(row, widths))
            ]
            lines.append(("  " + "  ".join(cells)).rstrip())
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    def markdown(self) -> str:
        rule = ["---", *["---:"] * (len(self.columns) - 1)]
        lines = ["| " + " | ".join(row) + " |" for row in [self.columns, rule, *self.rows]]
        return "\n\n".join([f"**{self.title}**", "\n".join(lines), *self.notes])


def percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def mb(size: float) -> str:
    return f"{size / 1e6:.0f}"


# ---- Tables ----------------------------------------------------------------------------------------------------------


def setting_lines(found: Dict[str, Any]) -> str:
    settings = found["settings"]
    plans = "; ".join(
        f"plan {plan.name}: "
        + " ".join(
            f"[{block.stages[0]}-{block.stages[-1]}: "
            + ", ".join(f"{device} {share:.0%}" for device, share in zip(block.devices, block.shares))
            + "]"
            for block in plan.blocks
        )
        for plan in make_plans(Settings())
        if settings["plans"] in ("both", plan.name.lower())
    )
    return (
        f"{settings['subgraphs']} subgraphs of {settings['edges']:,} edges and {settings['nodes']:,} nodes; {plans}.\n"
        f"Prepare: {settings['prepare']}; mapping: {settings['mapping']}. {found['machine']}; {turns_of(found)}."
    )


def turns_of(found: Dict[str, Any]) -> str:
    return f"medians of {found['repeat']} turns" if found["repeat"] > 1 else "one turn"


def stages_table(found: Dict[str, Any]) -> Table:
    parts = found["parts"]
    rows = [
        [
            f"{stage + 1} {name}",
            *(f"{parts['stage_ms'][gil][stage]:.1f}" for gil in KINDS),
            *(percent(parts["gil_held"][gil][stage]) for gil in KINDS),
        ]
        for stage, name in enumerate(STAGES)
    ]
    note = "A second thread asks for the GIL every half millisecond; the figure is the share of its time spent waiting."
    columns = ["stage", "hold ms", "release ms", "hold: GIL taken", "release: GIL taken"]
    return Table("Stages, whole subgraph, CPU time", columns, rows, note)


def mapping_table(found: Dict[str, Any]) -> Table:
    mapping = found["mapping"]
    row = ["ms", f"{mapping['loop_ms']:.1f}", f"{mapping['vectorised_ms']:.3f}", f"{mapping['ratio']:.0f} times"]
    return Table("The edges of a subgraph mapped and divided", ["", "loop", "vectorised", "faster"], [row])


def modes_table(gil: str, each: Dict[str, Any]) -> Table:
    rows = []
    for mode, figures in each["modes"].items():
        possible = mode not in ("sequential", BARE)
        rows.append(
            [
                mode if mode != BARE else f"{len(figures['processes'])} bare processes",
                f"{figures['seconds']:.2f}",
                f"{figures['speedup']:.2f}",
                f"{each['theory']['devices']:.2f}" if possible else "",
                f"{each['theory']['cores']:.2f}" if possible else "",
                percent(figures["efficiency"]) if possible else "",
                percent(figures["of_bare"]) if possible and figures["of_bare"] else "",
                percent(figures["gil_wait_share"]),
                percent(figures["cpu_wait_share"]),
                percent(figures["stolen_share"]),
                f"{figures['prepare_seconds']:.2f}",
            ]
        )
    columns = ["mode", "seconds", "speed-up", "theory", "theory, these cores", "efficiency", "of bare"]
    columns += ["waiting for GIL", "waiting for CPU", "taken by host", "prepare s"]
    equal = each["equal"]
    note = f"Of {equal['pairs']} pairs of results {len(equal['unequal'])} differ; at most by {equal['difference']:.1e}."
    return Table(KINDS[gil], columns, rows, note)


def blocks_table(gil: str, each: Dict[str, Any]) -> Table:
    keys = [
        "execution_ms",
        "average_ms",
        "input_wait_ms",
        "load_ms",
        "hand_over_ms",
        "cpu_ms",
        "cpu_wait_ms",
        "gil_wait_ms",
    ]
    rows = [
        [f"{mode} {block}", *(f"{found[key]:.0f}" if key != "average_ms" else f"{found[key]:.1f}" for key in keys)]
        for mode, figures in each["modes"].items()
        for block, found in figures["blocks"].items()
    ]
    columns = [
        "block",
        "execution",
        "per subgraph",
        "wait for input",
        "load",
        "hand over",
        "CPU",
        "wait for CPU",
        "wait for GIL",
    ]
    return Table(f"{KINDS[gil]}: what each block did; ms, all its workers", columns, rows)


def costs_table(gil: str, each: Dict[str, Any]) -> Table:
    rows = [
        [
            mode,
            str(len(figures["processes"])),
            mb(figures["rss"]),
            mb(figures["pss"]),
            mb(figures["sent_bytes"]),
            f"{figures['hand_over_ms']:.1f}",
            percent(figures["hand_over_share"]),
        ]
        for mode, figures in each["modes"].items()
    ]
    columns = ["mode", "processes", "RSS MB", "PSS MB", "sent MB", "handing over ms", "share of busy time"]
    return Table(f"{KINDS[gil]}: memory and communication", columns, rows)


def memory_table(gil: str, each: Dict[str, Any]) -> Table:
    processes = each["modes"]["processes"]["processes"]
    rows = [[process["name"], mb(process["rss"]), mb(process["pss"])] for process in processes]
    return Table(f"{KINDS[gil]}: memory of the processes", ["process", "RSS MB", "PSS MB"], rows)


def goals_table(found: Dict[str, Any]) -> Table:
    rows = [
        [goal["goal"], goal["wanted"], f"{goal['found']:.2f}", {True: "yes", False: "no", None: "-"}[goal["met"]]]
        for goal in found["goals"]
    ]
    reasons, met = why_not_judged(found), sum(bool(goal["met"]) for goal in found["goals"])
    note = f"Of {len(rows)} goals {met} are met; {turns_of(found)}."
    if reasons:
        note = f"Not judged: {', and '.join(reasons)}."
    return Table("Goals", ["goal", "wanted", "found", "met"], rows, note)


def tables(found: Dict[str, Any]) -> Dict[str, List[Table]]:
    """By the sections of docs/pipeline.md."""
    kinds = found["gil"].items()
    return {
        "parts": [stages_table(found), mapping_table(found)],
        "modes": [modes_table(gil, each) for gil, each in kinds],
        "costs": [costs_table(gil, each) for gil, each in kinds]
        + [memory_table(gil, each) for gil, each in kinds if "processes" in each["modes"]],
        "blocks": [blocks_table(gil, each) for gil, each in kinds],
        "goals": [goals_table(found)],
    }


def answer(found: Dict[str, Any]) -> str:
    """The cost and the gain of processes beside threads, for each kind of stages."""
    lines = []
    for gil, each in found["gil"].items():
        if not {"threads", "processes"} <= each["modes"].keys():
            continue
        threads, processes = (each["modes"][mode] for mode in ("threads", "processes"))
        rate = processes["sent_bytes"] / max(processes["hand_over_ms"], 1e-9) / 1e6
        bare = ""
        if processes["of_bare"]:
            bare = (
                f", and reach {percent(processes['of_bare'])} of the speed-up of processes that share nothing "
                f"(threads: {percent(threads['of_bare'])})"
            )
        lines.append(
            f"- {KINDS[gil]}: processes are {threads['seconds'] / processes['seconds']:.2f} times as fast as threads"
            f"{bare}. Processes take {mb(processes['pss'])} MB beside {mb(threads['pss'])} "
            f"({processes['pss'] / threads['pss']:.2f} times), and {processes['prepare_seconds']:.2f} s to start and "
            f"prepare beside {threads['prepare_seconds']:.2f}. Handing over {mb(processes['sent_bytes'])} MB costs "
            f"{processes['hand_over_ms']:.0f} ms, {percent(processes['hand_over_share'])} of the busy time "
            f"({rate:.1f} GB/s); in threads handing over costs {threads['hand_over_ms']:.0f} ms."
        )
    return "\n".join(lines)


def fill(page: str, sections: Dict[str, str]) -> str:
    """A page with the text between `<!-- measured: NAME -->` and `<!-- end -->` replaced. ValueError: no such place."""
    for name, text in sections.items():
        begin, end = f"<!-- measured: {name} -->\n", "<!-- end -->"
        before, found, rest = page.partition(begin)
        if not found or end not in rest:
            raise ValueError(f"the page has no place between '{begin.strip()}' and '{end}'")
        page = before + begin + text + "\n" + rest[rest.index(end) :]
    return page


def write_csv(found: Dict[str, Any], file: TextIO) -> None:
    """A row for each kind of stages, mode and block."""
    writer = csv.writer(file)
    head: List[str] = []
    for gil, each in found["gil"].items():
        for mode, figures in each["modes"].items():
            for block, values in figures["blocks"].items():
                row = {
                    "gil": gil,
                    "mode": mode,
                    "block": block,
                    "seconds": figures["seconds"],
                    "speedup": figures["speedup"],
                    **values,
                }
                if not head:
                    head = list(row)
                    writer.writerow(head)
                writer.writerow(row[name] for name in head)


# ---- Gantt -----------------------------------------------------------------------------------------------------------


def gantt(outcome: Outcome, names: Sequence[str]) -> str:
    """A line for each worker: the subgraph in its stages (0-9, a-z), + loading, ~ handing over, . waiting."""
    scale = COLUMNS / max(outcome.seconds, 1e-9)
    lines = []
    for name in names:
        weights: List[Dict[str, float]] = [{} for _ in range(COLUMNS)]
        for span in outcome.spans:
            if span.worker == name and span.kind != "stage":
                mark = {"block": DIGITS[span.subgraph % 36], "load": "+", "wait": "."}.get(span.kind, "~")
                begin, end = ((moment - outcome.began) * scale for moment in (span.start, span.end))
                for column in range(max(0, int(begin)), min(COLUMNS, int(end) + 1)):
                    part = min(end, column + 1) - max(begin, column)
                    weights[column][mark] = weights[column].get(mark, 0.0) + part
        marks = "".join(max(weight, key=lambda mark: weight[mark]) if weight else " " for weight in weights)
        lines.append(f"  {name:8} {marks.rstrip()}")
    return "\n".join(lines)


def gantts(found: Dict[str, Any], turns: Dict[str, List[Dict[str, Outcome]]], settings: Settings) -> str:
    parts = []
    for gil in found["gil"]:
        parts.append(f"{KINDS[gil]}. Digits: the subgraph in its stages; + loads, ~ hands over, . waits for input.")
        for mode in found["gil"][gil]["modes"]:
            if mode != BARE:
                outcome = representative(turns[gil], mode)
                plans = found["gil"][gil]["modes"][mode]["plan_seconds"]
                each = ", ".join(f"plan {plan} {seconds:.2f}" for plan, seconds in plans.items())
                parts.append(
                    f"{mode}, {outcome.seconds:.2f} s ({each})\n" + gantt(outcome, worker_names(settings, mode))
                )
    return "\n\n".join(parts)


COLOURS = {
    "A": "#2f6fb0",
    "B": "#2f9060",
    "gil": "#d64541",
    "cpu": "#d0d0d0",
    "load": "#7a5aa6",
    "hand over": "#f2a33c",
}
LEGEND = {"A": "stages, plan A", "B": "stages, plan B", "gil": "waits for the GIL", "cpu": "waits for a CPU"}
LEGEND.update({"load": "loads", "hand over": "hands over"})
SHORTEST = 0.0005  # seconds that can be seen
Bar = Tuple[float, float, str, float]  # start, length, colour, opacity


def bars(spans: Sequence[Span]) -> Iterator[Bar]:
    """The bars of a worker. A block is drawn as CPU time, then the waits: the lengths are measured, the places are
    not."""
    for span in spans:
        length = span.end - span.start
        if length < SHORTEST:
            continue
        if span.kind == "block":
            running = min(length, span.cpu)
            for_cpu = min(length - running, span.queue)
            yield span.start, running, COLOURS[span.block[0]], 1.0 if span.subgraph % 2 else 0.6
            waits = (running, for_cpu, "cpu"), (running + for_cpu, length - running - for_cpu, "gil")
            for after, duration, key in waits:
                if duration > SHORTEST:
                    yield span.start + after, duration, COLOURS[key], 1.0
        elif span.kind in ("load", "send", "recv"):
            yield span.start, length, COLOURS["load" if span.kind == "load" else "hand over"], 1.0


def draw(found: Dict[str, Any], turns: Dict[str, List[Dict[str, Outcome]]], settings: Settings, path: str) -> None:
    """ModuleNotFoundError: matplotlib is not installed."""
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("svg" if path.endswith(".svg") else "agg")
    matplotlib.rcParams.update({"svg.hashsalt": "ringcast", "svg.fonttype": "none", "font.size": 9})
    pyplot, patches = (importlib.import_module(f"matplotlib.{name}") for name in ("pyplot", "patches"))
    kinds = list(found["gil"])
    modes = [mode for mode in found["gil"][kinds[0]]["modes"] if mode != BARE]
    size = (7.5 * len(kinds), 1.0 + 1.75 * len(modes))
    figure, axes = pyplot.subplots(len(modes), len(kinds), figsize=size, squeeze=False, sharex=True)
    for column, gil in enumerate(kinds):
        for row, mode in enumerate(modes):
            panel(axes[row][column], representative(turns[gil], mode), worker_names(settings, mode))
            own = found["gil"][gil]["modes"][mode]
            faster = "" if mode == "sequential" else f", {own['speedup']:.2f} times as fast"
            start = f"{KINDS[gil]}: " if row == 0 else ""
            axes[row][column].set_title(f"{start}{mode}, {own['seconds']:.2f} s{faster}", fontsize=10, loc="left")
        axes[-1][column].set_xlabel("seconds")
    handles = [patches.Patch(color=COLOURS[key], label=text) for key, text in LEGEND.items()]
    figure.legend(handles=handles, loc="lower center", ncols=6 if len(kinds) > 1 else 3, frameon=False)
    figure.tight_layout(rect=(0, 0.35 / size[1] if len(kinds) > 1 else 0.7 / size[1], 1, 1))
    figure.savefig(path, dpi=110, metadata={"Date": None} if path.endswith(".svg") else None)
    pyplot.close(figure)


def panel(axis: Any, outcome: Outcome, names: List[str]) -> None:
    for line, name in enumerate(names):
        found = list(bars([span for span in outcome.spans if span.worker == name]))
        for colour, opacity in sorted({bar[2:] for bar in found}):
            own = [(bar[0] - outcome.began, bar[1]) for bar in found if bar[2:] == (colour, opacity)]
            axis.broken_barh(own, (line - 0.4, 0.8), facecolor=colour, alpha=opacity, linewidth=0)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def story_table(found: Dict[str, Any], kinds: Sequence[str]) -> Table:
    rows = [
        [
            step["step"],
            *(
                cell
                for gil in kinds
                for cell in (
                    f"{step[gil]['seconds']:.2f}",
                    f"{step[gil]['speedup']:.2f}",
                    percent(step[gil]["gil_wait_share"]),
                )
            ),
            step["published_elsewhere"],
        ]
        for step in found["steps"]
    ]
    columns = ["step", *(f"{gil}: {name}" for gil in kinds for name in ("seconds", "speed-up", "waiting for GIL"))]
    notes = [f"{found['machine']}; {turns_of(found)}."]
    notes += [
        f"{gil}: {len(equal['unequal'])} of {equal['pairs']} pairs of results differ."
        for gil, equal in found["equal"].items()
    ]
    return Table("Step by step", [*columns, "published elsewhere"], rows, *notes)
