"""The chart `tandem-crds` as files."""

from typing import Final

import yaml

from control_plane.crds.definitions import definitions

FOLDER: Final = "deploy/helm/tandem-crds"
_WIDTH: Final = 118
_GENERATED: Final = "# Generated from tandem/spec by `python -m tools.generate_crds`; change it there.\n"


def files(version: str) -> dict[str, str]:
    """Texts by paths relative to the repository, for a platform of this version."""
    texts = {f"{FOLDER}/Chart.yaml": _chart(version)}
    for plural, definition in definitions().items():
        text = yaml.dump(definition, sort_keys=False, width=_WIDTH, allow_unicode=True, Dumper=_NoAliases)
        if "{{" in text:
            raise ValueError(f"{plural}: Helm would take two braces in a description for its own")
        texts[f"{FOLDER}/templates/{plural}.yaml"] = _GENERATED + text
    return texts


class _NoAliases(yaml.SafeDumper):
    """Values that occur twice are written twice."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _chart(version: str) -> str:
    chart = {
        "apiVersion": "v2",
        "name": "tandem-crds",
        "description": "The kinds ModelService and EnginePool. They stay when this chart is removed.",
        "type": "application",
        "version": version,
        "appVersion": version,
        "kubeVersion": ">=1.29.0-0",
    }
    return _GENERATED + yaml.safe_dump(chart, sort_keys=False, width=_WIDTH)
