"""`splashlite serve`."""

from functools import partial

import click

from splashlite.options import load, load_options


@click.command()
@load_options
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on; another than loopback needs a key.",
)
@click.option(
    "--port",
    default=8000,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="The port to listen on; 0 takes a free one.",
)
@click.option(
    "--allowed-host",
    multiple=True,
    help="A name this machine is called by, for the Host header; may be repeated.",
)
@click.option(
    "--allowed-origin",
    multiple=True,
    help="A web page's origin (https://example.org) that may call; may be repeated.",
)
@click.option(
    "--api-key",
    envvar="SPLASHLITE_API_KEY",
    help="Ask for this key; better set SPLASHLITE_API_KEY, which no process list shows.",
)
def serve(pair, host, port, allowed_host, allowed_origin, api_key, **form):
    """Serve the OpenAI and Anthropic APIs and a chat page on this machine.

    \b
    splashlite serve
    splashlite serve incoai/Qwen3.8-27B-DFlash2 --port 8080
    """
    from splashlite.server import run

    return run.serve(
        partial(load, pair, **form),
        host,
        port,
        hosts=allowed_host,
        origins=allowed_origin,
        key=api_key or None,
    )
