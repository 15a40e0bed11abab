"""How an exec or attach has ended, in the forms of the error stream's versions."""

from __future__ import annotations

import json

from kurma_core.value import frozen


@frozen
class Outcome:
    """:param exit_code: of the command; 0: success. :param error: another failure; empty: there was none."""

    exit_code: int = 0
    error: str = ""

    def as_text(self) -> bytes:
        """For versions before ``v4.channel.k8s.io``: nothing after success."""
        if self.error:
            return self.error.encode()
        if self.exit_code:
            return f"command terminated with non-zero exit code: {self.exit_code}".encode()
        return b""

    def as_json(self) -> bytes:
        """For ``v4.channel.k8s.io`` and later: a Status of the Kubernetes API."""
        status: dict[str, object] = {"metadata": {}, "status": "Success"}
        if self.error:
            status |= {
                "status": "Failure",
                "message": self.error,
                "reason": "InternalError",
                "details": {"causes": [{"message": self.error}]},
                "code": 500,
            }
        elif self.exit_code:
            status |= {
                "status": "Failure",
                "message": f"command terminated with non-zero exit code: {self.exit_code}",
                "reason": "NonZeroExitCode",
                "details": {"causes": [{"reason": "ExitCode", "message": str(self.exit_code)}]},
            }
        return json.dumps(status).encode()
