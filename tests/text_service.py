"""A service of tiny models, most of them for texts."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import exports, servers

DIMENSIONS, MOST_TOKENS = 4, 64
ALIAS = "text-embedding-3-small"


@contextmanager
def running(folder: Path, models: str = "words,judge,feelings", **more: str) -> Iterator[str]:
    """Base URL of a service of these models, which are made in `folder`; the first is the default."""
    exports.each(folder, "feelings", "questions", "words", "judge", "dishes", "topics")
    pooling = ("Pooling", {"pooling_mode_mean_tokens": True})
    words = exports.modules(folder / "words", pooling, ("Normalize", {}))
    prompts = {"prompts": {"query": "warm ", "document": "table ", "recipes": "cold "}}
    (words / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    (folder / "food11").symlink_to(servers.ROOT / "models" / "food11")
    settings = {
        "SERVING_MODELS": ",".join(str(folder / name) for name in models.split(",")),
        "SERVING_ALIASES": f"{ALIAS}=words, org/judge=judge",
        "SERVING_LOG_LEVEL": "error",
        "SERVING_MAX_BATCH_SIZE": "4",
        **servers.UNMEASURED,
        **more,
    }
    with servers.api("fastapi_onnx", settings) as url:
        servers.wait_for(lambda: servers.metric(url, "serving_ready_workers") == len(models.split(",")))
        yield url
