"""Put a bill of materials into the wheel (CycloneDX, PEP 770): what coterie is, and what it needs."""

import json
import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Write the bill before the wheel is packed. It says the same for the same sources: no time, no random number."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add it to the wheel's files."""
        core = self.metadata.core
        path = Path(self.root) / "build" / "coterie.cdx.json"
        path.parent.mkdir(exist_ok=True)
        optional = [text for extra in core.optional_dependencies.values() for text in extra]
        bill = bill_of(core.name, self.metadata.version, core.dependencies, optional)
        path.write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")
        build_data["sbom_files"].append(str(path))


def bill_of(name: str, version: str, needed: list[str], optional: list[str]) -> dict[str, Any]:
    """Return the bill: the package itself, and its dependencies, whose versions are those that get installed."""
    own = f"pkg:pypi/{name}@{version}"
    parts = {_name(text): "optional" for text in optional} | {_name(text): "required" for text in needed}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": own,
                "name": name,
                "version": version,
                "purl": own,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": [
            {
                "type": "library",
                "bom-ref": f"pkg:pypi/{part}",
                "name": part,
                "scope": scope,
                "purl": f"pkg:pypi/{part}",
            }
            for part, scope in sorted(parts.items())
        ],
        "dependencies": [{"ref": own, "dependsOn": [f"pkg:pypi/{part}" for part in sorted(parts)]}],
    }


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()
