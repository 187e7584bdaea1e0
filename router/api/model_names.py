"""Resolves the model that a client means: by the model's name, one of its aliases, or either of them with a
revision."""

from collections.abc import Mapping

from router.generation import ServedModel


class ModelNames:
    """Looks names up. What there is to find is arranged anew when the list of models is another one."""

    def __init__(self) -> None:
        self._listed: tuple[ServedModel, ...] = ()
        self._named: Mapping[str, ServedModel] = {}

    def find(self, models: tuple[ServedModel, ...], name: str) -> ServedModel | None:
        """The one of `models` that `NAME` or `NAME@REVISION` means; None when there is none of that name, or no such
        revision of it."""
        if models is not self._listed:
            self._listed, self._named = models, by_name(models)
        found = self._named.get(name)
        if found is None and "@" in name:
            base, _, revision = name.rpartition("@")
            of_base = self._named.get(base)
            found = of_base if of_base is not None and revision in of_base.revisions else None
        return found


def by_name(models: tuple[ServedModel, ...]) -> Mapping[str, ServedModel]:
    """Every model under each of its names. A name of its own goes before another's alias."""
    named: dict[str, ServedModel] = {}
    for model in models:
        named.setdefault(model.name, model)
    for model in models:
        for alias in model.aliases:
            named.setdefault(alias, model)
    return named


def revision_asked(name: str, model: ServedModel) -> str:
    """The revision that `NAME@REVISION` asks for; empty for the bare model under any of its names."""
    return "" if name == model.name or name in model.aliases else name.rpartition("@")[2]
