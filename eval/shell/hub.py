"""Look at the hub before libraries do, so that nothing hangs on one that is out of reach."""

import os
import socket
import sys
import urllib.request
from urllib.parse import urlsplit

HUB_SECONDS = 5.0


def go_offline_if_unreachable() -> None:
    """Look whether the hub can be reached, before libraries retry for a minute; if not, only the local cache is used."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or urllib.request.getproxies():
        return
    address = urlsplit(constants.ENDPOINT)
    try:
        port = address.port or (443 if address.scheme == "https" else 80)
        socket.create_connection((str(address.hostname), port), timeout=HUB_SECONDS).close()
    except OSError as error:
        print(
            f"the hub at {constants.ENDPOINT} is out of reach ({error}); only what is in the local cache is used",
            file=sys.stderr,
        )
        os.environ["HF_HUB_OFFLINE"] = "1"
        constants.HF_HUB_OFFLINE = True
