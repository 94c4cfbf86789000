"""Writes the generated parts of README.md and docs/: `python -m tools.tables`, or `make docs-tables`.

A part stands between the comments `<!-- begin NAME -->` and `<!-- end NAME -->`. Settings, model.json
and the path of a request come from the code, figures from `benchmarks/results/`. A part that is out of
date fails a test.
"""

import json
import re
import subprocess
import sys
from itertools import product
from typing import Any

from pydantic import BaseModel, SecretStr
from pydantic_settings import BaseSettings

from benchmarks import chapters, ratios
from benchmarks.markdown import markdown
from benchmarks.sizing import sizing
from flask_app.settings import Settings as PageSettings
from smallplates.cli.commands import COMMANDS
from smallplates.models.description import (
    EmbeddingPipeline,
    ImagePipeline,
    Int8Verdict,
    ModelDescription,
    TextPipeline,
    Thresholds,
)
from smallplates.models.task_kinds import EMBEDDING, KINDS, PYTHON, RANKING, TaskKind
from smallplates.settings import OF_A_MODEL, ROOT, Settings
from smallplates.web.dialects import huggingface, tei

Devices = dict[str, tuple[str, ...]]
"""Device -> precisions."""

SECTIONS = {
    ImagePipeline.__name__: "image",
    TextPipeline.__name__: "text",
    EmbeddingPipeline.__name__: "embedding",
    Thresholds.__name__: "thresholds",
    Int8Verdict.__name__: "int8",
}
"""Object in model.json -> its section in docs/model-json.md."""

IMAGES: Devices = {"cpu": ("int8", "bf16", "fp32"), "cuda": ("fp16", "fp32")}
GRAPHS: Devices = {"cpu": ("int8", "bf16", "fp32"), "cuda": ("fp32",)}
TORCH_TEXTS: Devices = {"cpu": ("fp32",), "cuda": ("fp16", "fp32")}
BACKENDS = ("fastapi_onnx", "fastapi_pt")

PRECISIONS = {
    "fp32": "Always. An ONNX graph is computed in the number types of its file.",
    "fp16": "On a GPU: images with both backends, texts with PyTorch. "
    "`auto` uses it if it agrees with fp32.",
    "bf16": "On CPUs that have instructions for it, with OpenVINO or PyTorch. "
    "`auto` uses it if it agrees with fp32 and is faster.",
    "int8": "On CPUs. For images and texts, from a file that "
    "`smallplates export` or `smallplates quantize` writes; `auto` uses the file if it is fit, agrees "
    "with fp32 and is faster. "
    "For `question-answering` and `tensor`, from a `model_quantized.onnx` in the folder, with "
    "`SERVING_PRECISION=int8`.",
}

REST = "tensorflow-serving-and-torchserve.md"

PROTOCOLS = {
    "native": ("[native HTTP](api.md)", ("requests",)),
    "v2": ("[v2 over HTTP](v2.md)", ("requests", "tensors")),
    "grpc": (
        f"[v2](v2.md#grpc) and [TensorFlow Serving]({REST}#tensorflow-serving-over-grpc) over gRPC",
        ("requests", "tensors"),
    ),
    "tfserving": (f"[TensorFlow Serving]({REST}#tensorflow-serving)", ("requests", "tensors")),
    "torchserve": (f"[TorchServe]({REST}#torchserve), also over gRPC", ("requests",)),
    "tcp": ("[TCP](tcp.md)", ("requests",)),
    "openai": ("[OpenAI](embedding-protocols.md#openai)", ("requests",)),
    "huggingface": ("[Hugging Face](embedding-protocols.md#hugging-face)", ("requests",)),
    "cloud": ("[SageMaker and Vertex AI](sagemaker-and-vertex.md)", ("requests", "tensors")),
    "tei": ("[TEI](embedding-protocols.md#tei)", ("requests",)),
    "rerank": ("[Reranking](embedding-protocols.md#reranking)", ("requests",)),
    "ollama": ("[Ollama](embedding-protocols.md#ollama)", ("requests",)),
    "weaviate": ("[Weaviate](embedding-protocols.md#weaviate)", ("requests",)),
}
"""Protocol -> its name, and how clients may call a model in it."""

ONLY = {
    "openai": (EMBEDDING,),
    "huggingface": (*huggingface.KINDS,),
    "tei": tei.TASKS,
    "rerank": (RANKING,),
    "ollama": (EMBEDDING,),
    "weaviate": (EMBEDDING,),
}
"""Protocol -> its tasks, if it is not for all."""


SCOPES = {
    "each model, own value": OF_A_MODEL,
    "each model": ("queue_size", "preferred_batch_sizes", "worker_timeout_ms", "cpu_runtime"),
    "each worker": ("cpu_runtime_mb", "gpu_memory_fraction", "intra_op_threads", "idle_threads"),
    "each web process": (
        *("max_connections", "grpc_max_connections", "tcp_max_connections"),
        *("max_buffered_bytes",),
    ),
}
"""What a setting of the service counts for -> such settings; the others are for the whole service."""

PLAIN = (
    (r'"|(?:integer|number) (?:from (?=\S+ to ))?', ""),
    ("object: string", "list of pairs"),
    ("array: ", "list: "),
    ("boolean", "`true` or `false`"),
    ("directory-path", "folder"),
    ("file-path", "file"),
    ("string|password", "text"),
    ("list: text", "list"),
)
"""Words of `json_type` -> words for a variable, in this order."""


def settings_table(settings: type[BaseSettings], with_scope: bool = False) -> str:
    """One row a field: the environment variable, its default, its values, its scope, its meaning."""
    prefix = settings.model_config["env_prefix"]
    schemas = settings.model_json_schema()["properties"]
    rows = []
    for name, field in settings.model_fields.items():
        default = field.get_default(call_default_factory=True, validated_data={})
        meaning = " ".join((field.description or "").split())
        scope = [scope_of(name)] * with_scope
        values = values_of(schemas[name])
        rows.append([f"`{prefix}{name.upper()}`", shown(default), values, *scope, meaning])
    return table(["variable", "default", "values", *["for"] * with_scope, "meaning"], rows)


def scope_of(name: str) -> str:
    """What a setting of the service counts for."""
    return next((scope for scope, names in SCOPES.items() if name in names), "service")


def values_of(schema: dict[str, Any]) -> str:  # Any: a JSON schema
    """The values of a variable in words."""
    text = json_type(schema)
    for pattern, plain in PLAIN:
        text = re.sub(pattern, plain, text)
    return text


def shown(default: object) -> str:
    """A field's default as the table has it; no key and no path of this machine."""
    if isinstance(default, SecretStr):
        return "random"
    if default in (None, [], {}):
        return ""
    if isinstance(default, bool):
        return f"`{default}`".lower()
    if isinstance(default, list):
        return f"`{','.join(default)}`"
    return f"`{str(default).removeprefix(f'{ROOT}/')}`"


def command_line() -> str:
    """A section for each command of `smallplates`, with its options; those that `--help` shows."""
    parts = []
    for name, command in COMMANDS.items():
        click = command.load()
        group = getattr(click, "commands", {"": click})
        parts += [options_table(f"smallplates {name} {part}".rstrip(), group[part]) for part in group]
    return "\n\n".join(parts)


def options_table(title: str, command: Any) -> str:  # Any: a click command in Typer's form
    """The section of one command."""
    rows = []
    for parameter in command.params:
        if getattr(parameter, "hidden", False) or parameter.name == "help":
            continue
        is_option = parameter.param_type_name == "option"
        name = parameter.opts[0] if is_option else parameter.metavar or parameter.name.upper()
        value = parameter.default
        has_default = isinstance(value, int | float | str) and not isinstance(value, bool)
        rows.append([f"`{name}`", f"`{value}`" if has_default else "", parameter.help or ""])
    text = (command.help or "").partition("\n\n")[0]
    return f"## {title}\n{text}\n\n{table(['option', 'default', 'meaning'], rows)}"


def fields_table(model: type[BaseModel]) -> str:
    """One row for each field of an object in model.json: its JSON type, default and meaning."""
    rows = []
    for name, schema in model.model_json_schema()["properties"].items():
        field = model.model_fields[name]
        has_default = not field.is_required() and field.default not in (None, "", [], {})
        default = f"`{json.dumps(field.default)}`" if has_default else ""
        meaning = " ".join(schema.get("description", "").split())
        kind = json_type(schema)
        if field.is_required():
            default = "required"
            kind += " or null" * ({"type": "null"} in schema.get("anyOf", []))
        rows.append([f"`{name}`", kind, default, meaning])
    return table(["field", "type", "default", "meaning"], rows)


def json_type(schema: dict[str, Any]) -> str:  # Any: a JSON schema
    """The JSON type of a field in words, with limits of its numbers; null, a default, is left out."""
    if "$ref" in schema:
        return f"[object](#{SECTIONS[schema['$ref'].rpartition('/')[2]]})"
    if "anyOf" in schema:
        parts = [json_type(part) for part in schema["anyOf"] if part != {"type": "null"}]
        return " or ".join(part for part in parts if part != "integer" or "number" not in parts)
    if values := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return " or ".join(f'`"{value}"`' for value in values)
    kind: str = schema.get("format", schema["type"])
    if kind == "array":
        item = json_type(schema.get("items") or schema["prefixItems"][0])
        return f"array of {schema['maxItems']}: {item}" if "prefixItems" in schema else f"array: {item}"
    if kind == "object":
        values = schema.get("patternProperties", {"": schema.get("additionalProperties")})
        return f"object: {json_type(*values.values())}"
    least = "above 0" if "exclusiveMinimum" in schema else f"from {schema.get('minimum')}"
    if kind == "integer" and "exclusiveMinimum" in schema:
        least = "from 1"
    if "maximum" in schema:
        return f"{kind} {least} to {schema['maximum']}"
    return f"{kind} {least}" if {"minimum", "exclusiveMinimum"} & set(schema) else kind


def needs_table() -> str:
    """One row a task: the fields that it needs beside name and version."""
    names = [[f"`{name}`" for name in kind.needs] for kind in (*KINDS, PYTHON)]
    rows = [
        [f"[`{kind.name}`](#{anchor(kind.name)})", " and ".join(fields)]
        for kind, fields in zip((*KINDS, PYTHON), names, strict=True)
    ]
    return table(["`task`", "needs"], rows)


def anchor(heading: str) -> str:
    """The anchor of a heading that GitHub and the site agree on."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def supported_table() -> str:
    """One row for each task and backend: the precisions on each device."""
    rows = []
    for kind, backend in product(KINDS, BACKENDS):
        cells = [", ".join(each) or "not supported" for each in supported(kind, backend).values()]
        rows.append([f"`{kind.name}`", f"`{backend}`", *cells])
    rows.append([f"`{PYTHON.name}`", "both", "your code decides", "your code decides"])
    return table(["task", "backend", "CPU", "GPU (CUDA)"], rows)


def supported(kind: TaskKind, backend: str) -> Devices:
    """The precisions of a task on each device. A Python task computes as its class does."""
    if "image" in kind.needs:
        return IMAGES
    if backend == "fastapi_onnx":
        return GRAPHS
    return TORCH_TEXTS if kind.head else {"cpu": (), "cuda": ()}


def precisions_table() -> str:
    """One row for each value of SERVING_PRECISION but `auto`."""
    return table(["precision", "available"], [[f"`{k}`", text] for k, text in PRECISIONS.items()])


def protocols_table() -> str:
    """One row for each protocol: how clients may call the models of each task."""
    ways = {
        kind.name: (
            "requests" if (task := kind.load()).request_signature is not None else "",
            "tensors" if task.tensor_signature is not None else "",
        )
        for kind in (*KINDS, PYTHON)
    }
    texts = {kind.name for kind in KINDS if any(f.is_list and f.required for f in kind.load().request)}

    def ways_in(name: str, task: str) -> tuple[str, ...]:
        if task not in ONLY.get(name, ways):
            return ()
        if name == "cloud":  # each model has only the first way
            return tuple(way for way in ways[task] if way)[:1]
        return ways[task][task in texts and name == "tfserving" :]

    rows = [
        [
            title,
            *(", ".join(way for way in ways_in(name, task) if way in known) or "no" for task in ways),
        ]
        for name, (title, known) in PROTOCOLS.items()
    ]
    return table(["protocol", *(f"`{task}`" for task in ways)], rows)


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table whose columns are all aligned to the left."""
    return markdown(head, rows).replace("---:", "---")


def parts() -> dict[str, dict[str, str]]:
    """File -> name of the part -> its text."""
    return {
        "README.md": {"backends": chapters.backends(), "headline": chapters.headline()},
        "docs/command-line.md": {"commands": command_line()},
        "docs/configuration.md": {
            "service settings": settings_table(Settings, with_scope=True),
            "page settings": settings_table(PageSettings),
        },
        "docs/model-json.md": {
            "needs": needs_table(),
            "model": fields_table(ModelDescription),
            "image": fields_table(ImagePipeline),
            "text": fields_table(TextPipeline),
            "embedding": fields_table(EmbeddingPipeline),
            "int8": fields_table(Int8Verdict),
            "thresholds": fields_table(Thresholds),
        },
        "docs/performance.md": {name: chapters.chapter(name) for name in chapters.RENDERERS},
        "docs/tutorial-ratios.md": {"ratios": ratios.ratios(), "lock": ratios.lock()},
        "docs/ray.md": {"ray": chapters.ray()},
        "docs/scale.md": {"sizing": sizing(chapters.read(chapters.RESULTS, "scale"))},
        "docs/status-and-limits.md": {
            "tasks": supported_table(),
            "precisions": precisions_table(),
            "protocols": protocols_table(),
        },
    }


def request_path() -> str:
    """One row for each module of the web process that a request runs through; starts a service."""
    printed = subprocess.run(
        [sys.executable, "-m", "tools.request_path"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    head = "| module | what it is for |\n|---|---|"
    return f"{head}\n{printed.rstrip()}"


def filled(document: str, texts: dict[str, str]) -> str:
    """A document with these parts in it. Raises ValueError where a part has no place."""
    for name, text in texts.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        place = re.compile(f"{re.escape(begin)}.*{re.escape(end)}", re.DOTALL)
        document, count = place.subn(lambda _: f"{begin}\n{text}\n{end}", document)  # noqa: B023 called here
        if count != 1:
            raise ValueError(f"there must be one {begin} ... {end}, not {count}")
    return document


def main() -> None:
    """Writes every part."""
    slow = {"docs/how-it-works.md": {"request path": request_path()}}
    for path, texts in (parts() | slow).items():
        file = ROOT / path
        file.write_text(filled(file.read_text(), texts))


if __name__ == "__main__":
    main()
