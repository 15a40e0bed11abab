"""A CNI plugin that does as it is told: it notes down what it gets, and answers from a file of its test's."""

import json
import os

#: Another one for each run of the tests: a pod that is left takes the plugins along that still work for it.
POD = f"pod-{os.getpid()}"
SCRIPT = """#!/bin/sh
[ "$CNI_COMMAND" = VERSION ] && [ -e "$0.versions" ] && exec cat "$0.versions"
env >"$0.$CNI_COMMAND.env"
cat >"$0.$CNI_COMMAND"
echo "$CNI_COMMAND ${0##*/} $CNI_CONTAINERID" >>"${0%/*}/calls"
[ -e "$0.$CNI_COMMAND.error" ] && cat "$0.$CNI_COMMAND.error" && exit 1
[ "$CNI_COMMAND" = ADD ] && cat "$0.result"
exit 0
"""
RESULT = {"cniVersion": "1.1.0", "ips": [{"address": "10.0.0.2/24"}]}


class Stub:
    """:param directory: of programs. :param versions: that it says it speaks; None: it knows no VERSION."""

    def __init__(self, directory, name, versions=("1.0.0", "1.1.0"), result=RESULT):
        self._directory, self.name = directory, name
        path = directory / name
        path.write_text(SCRIPT)
        path.chmod(0o755)
        self.result = result
        if versions is not None:
            self._file("versions").write_text(
                json.dumps({"cniVersion": "1.1.0", "supportedVersions": list(versions)})
            )

    @property
    def result(self):
        return json.loads(self._file("result").read_text())

    @result.setter
    def result(self, value):
        self._file("result").write_text(json.dumps(value))

    def fails(self, verb, **error):
        self._file(f"{verb}.error").write_text(json.dumps(error))

    def succeeds(self, verb):
        self._file(f"{verb}.error").unlink()

    def read(self, verb):
        """The document that it got at the last such call."""
        return json.loads(self._file(verb).read_text())

    def environment(self, verb):
        lines = self._file(f"{verb}.env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if line.startswith("CNI_"))

    def was_asked(self, verb):
        return self._file(verb).exists()

    def _file(self, what):
        return self._directory / f"{self.name}.{what}"


def calls(directory):
    """``VERB PLUGIN`` of each call, in order, and from now on only later ones."""
    path = directory / "calls"
    lines = [" ".join(line.split()[:2]) for line in path.read_text().splitlines()] if path.exists() else []
    path.unlink(missing_ok=True)
    return lines
