"""README.md agrees with the code: every setting stands there with its default and its meaning."""

import pytest
from pydantic import SecretStr
from pydantic_settings import BaseSettings

from flask_app.settings import Settings as PageSettings
from serving.settings import ROOT, Settings

README = (ROOT / "README.md").read_text()


def row(settings: type[BaseSettings], name: str) -> str:
    """The line of the table for one field."""
    field = settings.model_fields[name]
    default = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(default, SecretStr):
        shown = "random"
    elif default is None or default == []:
        shown = ""
    elif isinstance(default, list):
        shown = f"`{','.join(default)}`"
    else:
        shown = f"`{str(default).removeprefix(f'{ROOT}/')}`"
    meaning = " ".join((field.description or "").split())
    return f"| `{settings.model_config['env_prefix']}{name.upper()}` | {shown} | {meaning} |"


@pytest.mark.parametrize(
    ("settings", "name"),
    [(s, name) for s in (Settings, PageSettings) for name in s.model_fields],
)
def test_every_setting_is_in_the_readme(settings: type[BaseSettings], name: str) -> None:
    assert row(settings, name) in README.splitlines()
