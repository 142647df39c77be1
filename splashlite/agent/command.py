"""`splashlite agent` and `splashlite env`."""

import click

PROGRAMS = ("claude", "codex", "opencode")
SHELLS = ("sh", "fish", "json")
_ARGUMENTS = "splashlite.agent.arguments"


class Launch(click.Command):
    """A command that leaves what follows -- to another program, whether or not PAIR was given."""

    def parse_args(self, ctx, args):
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_ARGUMENTS] = args[at + 1 :]
        return super().parse_args(ctx, args[:at])

    def collect_usage_pieces(self, ctx):
        return [*super().collect_usage_pieces(ctx), "[-- ARGUMENTS...]"]


_port = click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=8000,
    show_default=True,
    help="Where to look for a server.",
)


@click.command(cls=Launch)
@click.argument("program", type=click.Choice(PROGRAMS))
@click.argument("pair", required=False)
@_port
@click.pass_context
def agent(context, program, pair, port):
    """Run a coding agent on this machine's model.

    \b
    splashlite agent claude
    splashlite agent codex qwen3.8-27b
    splashlite agent opencode -- run "Why does the build fail?"

    Uses the splashlite server that runs, or starts one for as long as the program does. The program must be installed; it
    gets its settings when it starts, and no file is written for it. What follows -- goes to the program, and its exit code
    is this command's.
    """
    from splashlite.agent import launch

    return launch.agent(program, pair, port, context.meta[_ARGUMENTS])


@click.command()
@click.option(
    "--shell",
    type=click.Choice(SHELLS),
    default="sh",
    show_default=True,
    help="In whose words; sh is also bash and zsh.",
)
@_port
def env(shell, port):
    """Print the variables with which other programs find the server that runs.

    \b
    eval "$(splashlite env)"
    splashlite env --shell fish | source
    splashlite env --shell json
    """
    from splashlite.agent import served, variables
    from splashlite.errors import SplashliteError

    found = served.find(port)
    if found is None:
        raise SplashliteError(f"no splashlite server answers on port {port}: start one with splashlite serve")
    click.echo(variables.text(found, shell))
