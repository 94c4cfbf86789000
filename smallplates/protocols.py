"""The protocols besides the native one: names for SERVING_PROTOCOLS, and each one's `Dialect`.

If two of them share a path, it belongs to the one that is listed first.
"""

from collections.abc import Mapping

PROTOCOLS: Mapping[str, str] = {
    "v2": "smallplates.web.dialects.v2.http:DIALECT",
    "tfserving": "smallplates.web.dialects.tfserving:DIALECT",
    "torchserve": "smallplates.web.dialects.torchserve:DIALECT",
    "openai": "smallplates.web.dialects.openai:DIALECT",
    "huggingface": "smallplates.web.dialects.huggingface:DIALECT",
    # before TEI, whose bodies it answers at /invocations
    "cloud": "smallplates.web.dialects.cloud:DIALECT",
    "tei": "smallplates.web.dialects.tei:DIALECT",
    "rerank": "smallplates.web.dialects.rerank:DIALECT",
    "ollama": "smallplates.web.dialects.ollama:DIALECT",
    "weaviate": "smallplates.web.dialects.weaviate:DIALECT",
}
