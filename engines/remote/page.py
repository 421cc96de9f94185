"""The page with a server's metrics.

Read by http.client, as what the server says about itself: httpx costs more of this process per page, and as much of it
as a page costs, the load's loop cannot run.
"""

from __future__ import annotations

import http.client
from dataclasses import replace

from engines.base import EngineError
from engines.remote.config import RemoteConfig, Target, resolve
from engines.remote.server import connect

PATHS = ("/metrics", "/prometheus/metrics")  # the second is trtllm-serve's, whose first is something else
TIMEOUT_S = 2.0


class Page:
    """Read over one connection that stays open. `path` may be set to any of `paths`."""

    def __init__(self, config: RemoteConfig, target: Target) -> None:
        if config.metrics_url is not None:
            # Perhaps another server altogether, which the key and the headers are not for.
            config = replace(config, url=config.metrics_url, api_key=None, headers=())
            try:
                target = resolve(config)
            except EngineError as error:
                raise EngineError(str(error).replace("--url", "--metrics-url", 1)) from None
        self._config = replace(config, connect_timeout_s=TIMEOUT_S)
        self._target = target
        base = target.base_path
        named = config.metrics_url is not None and base
        self.paths = (base,) if named else tuple(base + path for path in PATHS)
        self.path = self.paths[0]
        self._connection: http.client.HTTPConnection | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self._target.tls else 'http'}://{self._target.host_header}{self.path}"

    def read(self) -> str:
        """Raises OSError or HTTPException, one line each."""
        try:
            if self._connection is None or self._connection.sock is None:
                self._connection = http.client.HTTPConnection(self._target.host, self._target.port)
                self._connection.sock = connect(self._config, self._target)
            self._connection.request("GET", self.path, headers=self._config.caller)
            response = self._connection.getresponse()
            body = response.read()
            if response.status != 200:
                raise http.client.HTTPException(f"HTTP {response.status}")
            return body.decode("utf-8", "replace")
        except BaseException:
            self.close()  # whatever state it is in
            raise

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
