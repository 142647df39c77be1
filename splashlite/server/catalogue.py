"""The small endpoints: models, tokens, health, status and metrics."""

from datetime import UTC, datetime
from typing import Annotated

from fastapi import FastAPI, Response
from pydantic import Field

from splashlite.server import conversation
from splashlite.server.conversation import Message
from splashlite.server.fields import Loose, Strict, Text
from splashlite.server.problems import Problem
from splashlite.server.serving import Serving
from splashlite.version import __version__

STUCK_S = 300  # a busy engine that shows no life for this long is not healthy


class ModelCard(Loose):
    """One model, in OpenAI's words and in Anthropic's."""

    id: str
    object: str
    type: str
    display_name: str
    created: int
    created_at: str
    owned_by: str
    context_length: int
    max_model_len: int
    trained_context_length: int | None
    drafter: str | None


class ModelList(Loose):
    object: str
    data: list[ModelCard]
    has_more: bool
    first_id: str
    last_id: str


class TokenizeRequest(Strict):
    model: Text | None = None
    content: Text | None = None
    messages: list[Message] | None = None
    add_special: bool = False


class TokenizeReply(Loose):
    tokens: list[int]
    count: int


class DetokenizeRequest(Strict):
    model: Text | None = None
    tokens: list[Annotated[int, Field(ge=0)]]


class DetokenizeReply(Loose):
    content: str


class Health(Loose):
    status: str
    step_age_s: float


class Status(Loose):
    version: str
    state: str
    model: str | None
    drafter: str | None
    speculation: str
    running: int
    waiting: int
    queue: int
    step_age_s: float
    engine: dict | None


def routes(api: FastAPI, serving: Serving) -> None:
    worker = serving.worker

    def card() -> ModelCard:
        model = serving.model
        return ModelCard(
            id=model.name,
            object="model",
            type="model",
            display_name=model.name,
            created=model.loaded_at,
            created_at=datetime.fromtimestamp(model.loaded_at, UTC).isoformat(),
            owned_by="splashlite",
            context_length=model.context,
            max_model_len=model.context,
            trained_context_length=model.about.get("trained_context"),
            drafter=model.drafter,
        )

    @api.get("/v1/models")
    async def models():
        only = card()
        return ModelList(object="list", data=[only], has_more=False, first_id=only.id, last_id=only.id)

    @api.get("/v1/models/{name:path}")
    async def model(name: str):
        serving.model.require(name)
        return card()

    @api.post("/tokenize")
    async def tokenize(body: TokenizeRequest):
        served = serving.model
        served.require(body.model)
        if (body.content is None) == (body.messages is None):
            raise Problem(400, "give either content or messages", param="content")

        def ids():
            if body.content is not None:
                return served.tokenizer.encode(body.content, add_special_tokens=body.add_special)
            text = served.template.render(conversation.plain(body.messages), None, {})
            return served.tokenizer.encode(text, add_special_tokens=False)

        tokens = await serving.off_loop(ids)
        return TokenizeReply(tokens=tokens, count=len(tokens))

    @api.post("/detokenize")
    async def detokenize(body: DetokenizeRequest):
        served = serving.model
        served.require(body.model)
        served.check_ids("tokens", body.tokens)
        return DetokenizeReply(content=await serving.off_loop(lambda: served.tokenizer.decode(body.tokens)))

    @api.get("/health")
    async def health(response: Response):
        """Whether the engine's thread lives, not only this one."""
        age = worker.step_age_s
        good = worker.state in ("loading", "ready") and age < STUCK_S
        response.status_code = 200 if good else 503
        if not good:
            response.headers["retry-after"] = "30"
        status = "ok" if good else "stuck" if worker.state == "ready" else worker.state
        return Health(status=status, step_age_s=round(age, 3))

    @api.get("/ready")
    async def ready():
        worker.require_ready()
        return {"status": "ready"}

    @api.get("/status")
    async def status():
        model = worker.prepared
        return Status(
            version=__version__,
            state=worker.state,
            model=model.name if model else None,
            drafter=model.drafter if model else None,
            speculation=worker.speculation
            or ("on" if model and model.drafter else "off: this pair has no drafter"),
            running=int(worker.busy),
            waiting=worker.waiting,
            queue=worker.queue,
            step_age_s=round(worker.step_age_s, 3),
            engine=_without_paths(model.about, model) if model else None,
        )

    @api.get("/metrics")
    async def metrics():
        return Response(serving.metrics.text(), media_type="text/plain; version=0.0.4")


def _without_paths(about: dict, model) -> dict:
    return about | {"target": model.name, "drafter": model.drafter}
