"""Export: turns weights into a model folder that the service can load.

`smallplates export torchvision --weights FILE ...` takes a state dict (safetensors, or a `.pt` file that
holds only tensors), `smallplates export onnx --file FILE ...` an ONNX file. Both write `OUT/model.json`
and `OUT/VERSION/...`. With `--int8 --calibrate PHOTOS` they add files in int8; `smallplates quantize
FOLDER` does that for an existing folder. `smallplates export transformers FOLDER` writes the graph of a
network for texts, and `smallplates export static FOLDER` makes a model folder of static embeddings.
"""

import itertools
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import onnx
import typer
from pydantic import ValidationError
from typer.core import TyperCommand

from smallplates.cli import hub
from smallplates.cli.commands import Group
from smallplates.errors import ConfigurationError, in_one_line, in_words
from smallplates.export import given_graph, int8, int8_text, static
from smallplates.export.folder import description_of, read_labels, write_description
from smallplates.export.int8 import Options as Int8Options
from smallplates.models.description import (
    INT8_KINDS,
    Activation,
    ImagePipeline,
    Int8Verdict,
    Kind,
    ModelDescription,
    folder_name,
    name_of,
)
from smallplates.models.folder import Model
from smallplates.models.huggingface import CONFIG
from smallplates.models.task_kinds import (
    EMBEDDING,
    RANKING,
    TEXT_CLASSIFICATION,
    TOKEN_CLASSIFICATION,
    ZERO_SHOT,
    kind_of,
)

QUANTISED_TEXTS = (TEXT_CLASSIFICATION, ZERO_SHOT, TOKEN_CLASSIFICATION, EMBEDDING, RANKING)
"""Tasks of texts whose int8 files can be judged."""

NO_INT8 = "no int8 file was made"


class NoInt8Error(ConfigurationError):
    """No int8 file could be made; the fp32 model is as it was."""


class OneSentence:
    """Reports errors that a user can mend in one sentence, with exit code 1."""

    outcome = "nothing was exported"

    def invoke(self, ctx: Any) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)  # type: ignore[misc]  # of the class beside this one
        except (ConfigurationError, OSError) as error:
            outcome = NO_INT8 if isinstance(error, NoInt8Error) else self.outcome
            typer.echo(f"{outcome}: {in_one_line(error)}", err=True)
            raise typer.Exit(1) from error


class Export(OneSentence, Group):
    """`smallplates export`."""

    advice = (
        "is not a kind of export; before it, type torchvision (weights of an image classifier), onnx "
        "(an image classifier as an ONNX file), transformers (a network for texts) or static (static "
        "embeddings)"
    )


class Quantise(OneSentence, TyperCommand):
    """`smallplates quantize`."""

    outcome = NO_INT8


PLAIN: dict[str, Any] = {  # no frames, no colours, no tracebacks with values in them
    "add_completion": False,
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
}
app = typer.Typer(help=__doc__, no_args_is_help=True, cls=Export, **PLAIN)
quantise_app = typer.Typer(**PLAIN)

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

Labels = Annotated[
    Path,
    typer.Option(
        help="Text file with one label per line, in the order of the outputs, or TorchServe's "
        "index_to_name.json."
    ),
]
Out = Annotated[Path, typer.Option(help="Model folder; created if it does not exist.")]
Resize = Annotated[
    str,
    typer.Option(help="Size to resize to: short side in pixels, or HEIGHTxWIDTH.", metavar="N or HxW"),
]
CenterCrop = Annotated[int | None, typer.Option(help="Side of the centre crop in pixels.")]
Enlarge = Annotated[
    str | None, typer.Option(help="Size to enlarge to after the crop: HEIGHTxWIDTH.", metavar="HxW")
]
Triple = tuple[float, float, float]
Architecture = Annotated[str, typer.Option(help="Name of the network in torchvision.models.")]
Version = Annotated[str, typer.Option(help="Version: name of the subfolder for the weights.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit on the Hub.")]
Mean = Annotated[
    Triple, typer.Option(help="Mean of each channel (R, G, B), from 0 to 1; by default ImageNet's.")
]
Std = Annotated[Triple, typer.Option(help="Standard deviation of each channel; by default ImageNet's.")]
Probabilities = Annotated[
    Activation,
    typer.Option(
        help="How logits become probabilities; sigmoid if several classes may apply to an image."
    ),
]
Int8 = Annotated[bool, typer.Option("--int8", help="Add int8 files, which are faster on CPUs.")]
Calibrate = Annotated[Path | None, typer.Option(help="For int8: folder or zip file of typical photos.")]
Validate = Annotated[
    Path | None,
    typer.Option(
        help="For int8: photos, or a file of texts, for the comparison with fp32. By default, those of "
        "--calibrate that calibration does not use."
    ),
]


def size(text: str) -> tuple[int, int]:
    """Parses `224x224` to (224, 224)."""
    try:
        height, width = text.lower().split("x")
        return int(height), int(width)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not HEIGHTxWIDTH") from error


def pipeline(
    resize: str,
    center_crop: int | None,
    enlarge: str | None,
    mean: Triple,
    std: Triple,
    activation: Activation,
) -> ImagePipeline:
    """Makes the image pipeline of the command line's options. Raises ConfigurationError."""
    try:
        return ImagePipeline(
            resize=int(resize) if resize.isdecimal() else size(resize),
            center_crop=center_crop,
            enlarge=size(enlarge) if enlarge else None,
            mean=mean,
            std=std,
            activation=activation,
        )
    except ValidationError as error:
        raise ConfigurationError(in_words(error)) from error


@app.command("torchvision")
def from_torchvision(
    weights: Annotated[Path, typer.Option(help="State dict, .safetensors or .pt.")],
    labels: Labels,
    out: Out,
    name: Annotated[str, typer.Option(help="Name of the model.")],
    architecture: Architecture = "mobilenet_v2",
    version: Version = "1",
    resize: Resize = "224x224",
    center_crop: CenterCrop = None,
    enlarge: Enlarge = None,
    mean: Mean = IMAGENET_MEAN,
    std: Std = IMAGENET_STD,
    activation: Probabilities = "softmax",
    body_size: Annotated[
        int | None, typer.Option(help="Side in pixels to which the network reduces its input.")
    ] = None,
    temperature: Annotated[
        float, typer.Option(help="Divisor of the logits, which calibrates the probabilities.")
    ] = 1.0,
    i_trust_this_pickle: Annotated[
        bool,
        typer.Option(
            "--i-trust-this-pickle",
            help="DANGER: unpickles a whole module. Its author can run any code on this machine.",
        ),
    ] = False,
    with_int8: Int8 = False,
    calibrate: Calibrate = None,
    validate: Validate = None,
) -> None:
    """Creates a model folder for both backends from the state dict of a torchvision architecture."""
    options = int8_options(with_int8, calibrate, validate)
    names = read_labels(labels)
    image = pipeline(resize, center_crop, enlarge, mean, std, activation)
    description = description_of(
        image, name=name, version=version, labels=names, architecture=architecture, body_size=body_size
    )
    from smallplates.export import torch_export  # PyTorch, which the other command does without

    network = torch_export.network(description, weights, i_trust_this_pickle, temperature)
    torch_export.write(network, image, out / version)
    finish(out, description, options)


@app.command("onnx")
def from_onnx(
    file: Annotated[
        Path, typer.Option(help="ONNX file: float [N, 3, H, W] in, logits [N, classes] out.")
    ],
    labels: Labels,
    out: Out,
    name: Annotated[str, typer.Option(help="Name of the model.")],
    version: Version = "1",
    resize: Resize = "224x224",
    center_crop: CenterCrop = None,
    enlarge: Enlarge = None,
    mean: Mean = IMAGENET_MEAN,
    std: Std = IMAGENET_STD,
    activation: Probabilities = "softmax",
    output: Annotated[
        str | None, typer.Option(help="Output with the logits; by default the first one.")
    ] = None,
    with_int8: Int8 = False,
    calibrate: Calibrate = None,
    validate: Validate = None,
) -> None:
    """Creates a model folder for the ONNX backend from an ONNX file and its labels."""
    options = int8_options(with_int8, calibrate, validate)
    names = read_labels(labels)
    image = pipeline(resize, center_crop, enlarge, mean, std, activation)
    description = description_of(image, name=name, version=version, labels=names)
    graph, notes = given_graph.convert(given_graph.read(file), image.output_size, output)
    notes += given_graph.try_out(graph, image, len(names))
    folder = out / version
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(graph, folder / "model.onnx")  # one file, even if the weights were beside it
    (folder / "model.safetensors").unlink(missing_ok=True)  # of another network
    for note in notes:
        typer.echo(f"{file}: {note}")
    finish(out, description, options)


@app.command("transformers")
def from_transformers(
    source: Annotated[
        str, typer.Argument(help="Folder with safetensors, or a model id of the Hugging Face Hub.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the graph and what belongs to it; by default the same."),
    ] = None,
    revision: Revision = None,
) -> None:
    """Writes onnx/model.onnx for a network of texts, such as one of sentence-transformers."""
    if hub.is_id(source) and out is None:
        raise typer.BadParameter("--out is needed for a model of the Hugging Face Hub")
    folder, name = fetched(source, revision, "pt")
    model = Model.read(folder, name=name)
    if not (kind_of(model.description.task).outputs and (folder / CONFIG).is_file()):
        raise ConfigurationError(
            f"{source} is not an export of a network for texts by transformers: "
            "for images, export it with optimum-cli"
        )
    from smallplates.export import text_network  # PyTorch and transformers

    out = out or folder
    text_network.write(model, out / "onnx" / "model.onnx")
    for path in itertools.chain.from_iterable(map(folder.glob, hub.DESCRIPTION)):
        place = out / path.relative_to(folder)
        if not place.exists():
            place.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, place)
    typer.echo(f"serve it with: smallplates serve {out}")


@app.command("static")
def from_static(
    source: Annotated[
        str,
        typer.Argument(
            help="Folder of Model2Vec, or of sentence-transformers with StaticEmbedding, or a model id "
            "of the Hugging Face Hub."
        ),
    ],
    out: Out,
    name: Annotated[str | None, typer.Option(help="Name of the model; by default the source's.")] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of tokens in a text; by default the model's."),
    ] = None,
    revision: Revision = None,
) -> None:
    """Creates a model folder for the ONNX backend from static embeddings."""
    folder, own = fetched(source, revision, "static")
    name = name_of(folder, name or own or folder_name(folder))
    finish(out, static.write(folder, out, name, max_tokens), None)
    typer.echo(f"serve it with: smallplates serve {out}")


def fetched(source: str, revision: str | None, kind: str) -> tuple[Path, str]:
    """Returns a folder, or the folder and the name of a model of the Hub. Raises ConfigurationError."""
    if not hub.is_id(source):
        return Path(source), ""
    return hub.fetch(source, revision, [kind]), source.rpartition("/")[2]


@quantise_app.command(cls=Quantise)
def quantise(
    model_dir: Annotated[Path, typer.Argument(help="Model folder.")],
    calibrate: Annotated[
        Path,
        typer.Option(
            help="Folder or zip file of typical photos. For texts, a file with one text per line, "
            "followed by a tab and its label if it is known."
        ),
    ],
    validate: Validate = None,
    version: Annotated[
        str | None, typer.Option(help="Version; by default the one in model.json.")
    ] = None,
    photos: Annotated[
        int, typer.Option(min=1, help="Maximum number of photos or texts for the comparison.")
    ] = 2000,
    minutes: Annotated[
        float,
        typer.Option(min=0, help="Stop trying further ways to quantize after this many minutes."),
    ] = 10,
    file: Annotated[Path | None, typer.Option(help="Existing int8 ONNX graph to check and add.")] = None,
) -> None:
    """Adds int8 files to a model folder, and records whether they are fit for use.

    The record is in model.json; without one, beside the int8 file.
    """
    write_int8(Model.read(model_dir, version), Int8Options(calibrate, validate, photos, minutes, file))


def int8_options(with_int8: bool, calibrate: Path | None, validate: Path | None) -> Int8Options | None:
    """Returns the options for int8, None without it. Raises BadParameter."""
    if not with_int8:
        if calibrate or validate:
            raise typer.BadParameter("--calibrate and --validate need --int8")
        return None
    if calibrate is None:
        raise typer.BadParameter("--int8 needs --calibrate, a folder or zip file of photos")
    return Int8Options(calibrate, validate)


def finish(out: Path, description: ModelDescription, options: Int8Options | None) -> None:
    """Writes the description of new weights, and their int8 files if `options` ask for them.

    Raises NoInt8Error.
    """
    for kind in INT8_KINDS:
        (out / description.version / kind).unlink(missing_ok=True)  # of another network
    write_description(out, description)
    if options:
        write_int8(Model.read(out, description.version), options)


def write_int8(model: Model, options: Int8Options) -> None:
    """Adds int8 files to a folder and prints the verdicts. Raises NoInt8Error.

    The verdicts are stored in model.json, or beside the files of a folder that has none, such as an
    export from Hugging Face.
    """
    try:
        verdicts: Mapping[Kind, Int8Verdict]
        if model.description.task in QUANTISED_TEXTS:
            verdicts = int8_text.add(model, options)
        else:
            verdicts = int8.add(model, options)
    except (ConfigurationError, OSError) as error:
        raise NoInt8Error(str(error)) from error
    for kind, verdict in verdicts.items():
        verdict.fp32_sha256 = model.fp32_sha256(kind)
    version = model.description.version
    model.description.int8 |= {f"{version}/{kind}": verdict for kind, verdict in verdicts.items()}
    has_model_json = (model.folder / "model.json").exists()
    if has_model_json:
        write_description(model.folder, model.description)
    for kind, verdict in verdicts.items():
        if not has_model_json:
            beside = model.file(kind).with_suffix(".json")
            beside.write_text(verdict.model_dump_json(indent=2) + "\n", encoding="utf-8")
        typer.echo(f"{kind}: {'fit' if verdict.fit else 'NOT FIT'}; {verdict.reason}")
        typer.echo(json.dumps(verdict.model_dump(exclude={"fit", "reason"})))


if __name__ == "__main__":
    app()
