"""The vendored files of the console and of the API's page are those that the manifest names."""

from __future__ import annotations

import json

from tests.tools.console import vendor


def test_the_vendored_files_are_those_of_the_manifest(monkeypatch, tmp_path):
    assert vendor.check() == []
    changed = json.loads(vendor.MANIFEST.read_text())
    changed[0]["sha256"] = "0" * 64
    changed[1]["file"] = "gateway/console/static/vendor/other.js"
    (tmp_path / "manifest.json").write_text(json.dumps(changed))
    monkeypatch.setattr(vendor, "MANIFEST", tmp_path / "manifest.json")
    assert vendor.check() == sorted(
        [
            vendor.PACKAGES[0].files["dist/htmx.min.js"],
            changed[1]["file"],
            "gateway/console/static/vendor/htmx-sse.js",
        ]
    )


def test_each_package_has_its_licence_and_its_versions_agree():
    text = vendor.LICENCES.read_text()
    recorded = {(e["package"], e["version"], e["licence"]) for e in json.loads(vendor.MANIFEST.read_text())}
    assert recorded == {(p.name, p.version, p.licence) for p in vendor.PACKAGES}
    for name, version, licence in recorded:
        assert f"{name} {version} ({licence})" in text
