"""Volumes as directories of this machine, kept up to date as a kubelet does: a change appears all at once."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tandem.kube.kinds import Json
from tests.cluster.kubelet.environment import NotThere, field_of
from tests.cluster.kubelet.objects import Objects

_DATA = "..data"
Files = dict[str, tuple[bytes, int]]
"""Content and mode by relative path."""


@dataclass(frozen=True)
class Volumes:
    """The volumes of one pod under `directory`."""

    pod: Json
    directory: Path
    objects: Objects

    def path(self, name: str) -> Path:
        """Where the volume of this name lies."""
        volume = next(volume for volume in self._all() if volume["name"] == name)
        if "hostPath" in volume:
            return Path(volume["hostPath"]["path"])
        return self.directory / name

    async def make(self) -> None:
        """All of them. Raises NotThere while something they show does not exist."""
        for volume in self._all():
            path = self.path(volume["name"])
            if volume.get("hostPath", {}).get("type") == "DirectoryOrCreate" or "hostPath" not in volume:
                path.mkdir(parents=True, exist_ok=True)
            if "emptyDir" in volume:
                path.chmod(0o777)
            elif "hostPath" not in volume:
                publish(path, await self._files(volume), self._group)

    async def refresh(self) -> None:
        """Take over what has changed in what they show."""
        for volume in self._all():
            if "emptyDir" not in volume and "hostPath" not in volume:
                publish(self.path(volume["name"]), await self._files(volume), self._group)

    @property
    def _group(self) -> int | None:
        group: int | None = (self.pod["spec"].get("securityContext") or {}).get("fsGroup")
        return group

    def _all(self) -> list[Json]:
        return list(self.pod["spec"].get("volumes") or ())

    async def _files(self, volume: Json) -> Files:
        if "projected" in volume:
            files: Files = {}
            mode = volume["projected"].get("defaultMode", 0o644)
            for source in volume["projected"]["sources"]:
                files |= await self._source(source, mode)
            return files
        if "configMap" in volume:
            return await self._keys("ConfigMap", volume["configMap"]["name"], volume["configMap"])
        if "secret" in volume:
            return await self._keys("Secret", volume["secret"]["secretName"], volume["secret"])
        if "downwardAPI" in volume:
            return self._fields(volume["downwardAPI"], volume["downwardAPI"].get("defaultMode", 0o644))
        raise NotThere(f"volume {volume['name']} is of a kind that is not known here")

    async def _source(self, source: Json, mode: int) -> Files:
        if "serviceAccountToken" in source:
            token = source["serviceAccountToken"]
            text = await self.objects.token(self.pod, token.get("expirationSeconds", 3600), token.get("audience"))
            return {token["path"]: (text.encode(), mode)}
        for key, kind in (("configMap", "ConfigMap"), ("secret", "Secret")):
            if key in source:
                return await self._keys(kind, source[key]["name"], {"defaultMode": mode, **source[key]})
        return self._fields(source["downwardAPI"], mode)

    async def _keys(self, kind: str, name: str, asked: Json) -> Files:
        held = await self.objects.bytes_of(kind, self.pod["metadata"]["namespace"], name)
        if held is None:
            if asked.get("optional"):
                return {}
            raise NotThere(f"{kind} {name} not found")
        mode = asked.get("defaultMode", 0o644)
        wanted = asked.get("items")
        if wanted is None:
            return {key: (content, mode) for key, content in held.items()}
        missing = [item["key"] for item in wanted if item["key"] not in held]
        if missing and not asked.get("optional"):
            raise NotThere(f"{kind} {name} has no key {missing[0]}")
        return {item["path"]: (held[item["key"]], item.get("mode", mode)) for item in wanted if item["key"] in held}

    def _fields(self, asked: Json, mode: int) -> Files:
        items = [item for item in asked.get("items") or () if "fieldRef" in item]
        return {item["path"]: (field_of(item["fieldRef"]["fieldPath"], self.pod).encode(), mode) for item in items}


def publish(directory: Path, files: Mapping[str, tuple[bytes, int]], group: int | None) -> None:
    """Make `directory` show these files: a link is turned from the old set to the new one in one step."""
    now = directory / _DATA
    if now.exists() and _shown(now) == {name: content for name, (content, _) in files.items()}:
        return
    old = now.resolve() if now.is_symlink() else None
    number = 1 + int(old.name.removeprefix("..")) if old else 1
    fresh = directory / f"..{number}"
    fresh.mkdir()
    for name, (content, mode) in files.items():
        path = fresh / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode if group is None else mode | 0o040)
        if group is not None:
            os.chown(path, -1, group)
    turning = directory / "..turning"
    turning.symlink_to(fresh.name)
    turning.rename(now)
    for top in {Path(name).parts[0] for name in files}:
        if not (directory / top).is_symlink():
            (directory / top).symlink_to(Path(_DATA) / top)
    if old is not None:
        shutil.rmtree(old)


def _shown(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    root = directory.resolve()
    return {str(path.resolve().relative_to(root)): path.read_bytes() for path in files}
