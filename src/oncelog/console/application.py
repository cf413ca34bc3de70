"""The addresses of the console, and how a page becomes HTML or JSON.

Every page is there as HTML and, with `?format=json` or `Accept: application/json`, as the same contents in JSON. Pages
are made in threads, a few at a time, because they wait for the cluster.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode

import anyio.to_thread
from jinja2 import PackageLoader, StrictUndefined, select_autoescape
from starlette.applications import Starlette
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from oncelog import __version__
from oncelog.console import changes
from oncelog.console.export import FORMATS, export
from oncelog.console.filters import ago, drawn_bars, labelled
from oncelog.console.guard import SAFE_METHODS, Guard
from oncelog.console.page import BadInput, Busy, Console, NotThere, NotYet, Page, Problem, Query, Unreachable
from oncelog.console.pages import brokers, groups, overview, pipelines, topics, transactions
from oncelog.console.settings import ConsoleSettings
from oncelog.console.template_environment import TemplateEnvironment
from oncelog.console.visits import SESSION_S, LogInFailed, Sessions, Visit, Visits
from oncelog.console.watch import status_row
from oncelog.core.display import count_of, show_bytes, show_duration, show_time
from oncelog.core.errors import RETRIABLE, KafkaError

logger = logging.getLogger(__name__)

NOTHING: Final = "\u2013"
"""A dash, for what is not known or does not apply."""
OR_HIDDEN: Final = ", as far as ACLs let you see"
"""Behind a sentence that there is nothing, for who is somebody to the cluster."""
THREADS: Final = 8
LOG_IN_THREADS: Final = 2
WAITING_MAX: Final = 64
"""Requests that may wait for one of the threads."""
FORM_BYTES_MAX: Final = 256 * 1024
FORM_S: Final = 10.0
"""How long a form may take to arrive."""
LOG_IN_PATH: Final = "/log-in"
EVENTS_PATH: Final = "/events"
FAILED_LOG_IN_S: Final = 1.0
"""How long the answer to a failed log-in takes at least: guessing is slow."""
FIRST_TEMPLATES: Final = ("base.html", "parts.html", "problem.html", "overview.html")
STATIC: Final = Path(__file__).parent / "static"

Endpoint = Callable[[Request], Awaitable[Response]]
MakePage = Callable[..., Page]
MakeChange = Callable[[Console, Query, str], str]


class NumberConvertor(IntegerConvertor):
    """Python refuses to read numbers of thousands of digits."""

    regex = "[0-9]{1,20}"


register_url_convertor("number", NumberConvertor())


def make_application(visits: Visits, settings: ConsoleSettings) -> ASGIApp:
    renderer = Renderer(visits)

    async def events(request: Request) -> Response:
        visit = visits.find(request.cookies)
        if visit is None:
            return PlainTextResponse("Log in first.\n", 401)
        streams = visit.streams
        if streams.is_full:
            return await renderer.problem(request, Busy("There are too many open streams.", "Close some tabs."))
        try:
            last = int(request.headers.get("last-event-id") or request.query_params.get("after") or -1)
        except ValueError:
            last = -1
        headers = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}
        return StreamingResponse(streams.stream(last), media_type="text/event-stream", headers=headers)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        visits.start()
        await renderer.prepare()
        try:
            yield
        finally:
            visits.stop()

    page = renderer.page
    application = Starlette(
        routes=[
            Route("/", page(overview.overview)),
            Route("/transactions", page(transactions.transaction_list)),
            Route("/transactions/{transactional_id:path}", page(transactions.transaction)),
            Route("/hanging", page(transactions.hanging)),
            Route("/topics", page(topics.topic_list)),
            Route("/topics/{name}", page(topics.topic)),
            Route("/topics/{name}/timeline", page(topics.timeline)),
            Route("/topics/{name}/producers", page(topics.producers)),
            Route("/topics/{name}/messages", page(topics.message_list)),
            Route("/topics/{name}/messages/{partition:number}/{offset:number}", page(topics.message)),
            Route("/groups", page(groups.group_list)),
            Route("/groups/{group_id:path}", page(groups.group)),
            Route("/pipelines", page(pipelines.pipeline_list)),
            Route("/pipelines/{group_id:path}", page(pipelines.pipeline)),
            Route("/brokers", page(brokers.broker_list)),
            Route("/brokers/{node_id:number}", page(brokers.broker)),
            Route("/changes/fence", page(changes.fence_dialog)),
            Route("/changes/fence", renderer.change(changes.fence_change), methods=["POST"]),
            Route("/changes/abort", page(changes.abort_dialog)),
            Route("/changes/abort", renderer.change(changes.abort_change), methods=["POST"]),
            Route("/changes/reset", page(changes.reset_dialog)),
            Route("/changes/reset", renderer.change(changes.reset_change), methods=["POST"]),
            Route(EVENTS_PATH, events),
            *(
                log_in_routes(visits, renderer, is_secure=settings.certificate is not None)
                if isinstance(visits, Sessions)
                else ()
            ),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        exception_handlers={HTTPException: renderer.http_error, Exception: renderer.unexpected},
        lifespan=lifespan,
    )
    # Around everything, also around the page that tells of a fault.
    return Guard(application, settings.host_names)


def log_in_routes(sessions: Sessions, renderer: Renderer, *, is_secure: bool) -> list[Route]:
    # Those who try passwords do not take the threads of those who are logged in.
    log_ins = anyio.CapacityLimiter(LOG_IN_THREADS)

    async def form(request: Request) -> Response:
        return renderer.log_in_form(request, request.query_params.get("next", "/"))

    async def log_in(request: Request) -> Response:
        where = "/"
        try:
            fields = Query(await read_form(request))
            where = _local_path(fields.word("next"))
            user, password = fields.required("user"), fields.required("password")
            address = request.client.host if request.client is not None else "unknown"
            sessions.failures.check(address)
            token = await renderer.in_thread(partial(sessions.log_in, user, password), log_ins)
        except Problem as problem:
            if isinstance(problem, LogInFailed):
                sessions.failures.add(address)
                await anyio.sleep(FAILED_LOG_IN_S)
            return renderer.log_in_form(request, where, problem)
        # Whoever had a session, perhaps as somebody else, has a new one: a token from before a log-in is worth nothing.
        await renderer.in_thread(partial(sessions.log_out, request.cookies.get(sessions.cookie, "")))
        answer = RedirectResponse(where, status_code=303)
        answer.set_cookie(sessions.cookie, token, max_age=SESSION_S, httponly=True, samesite="strict", secure=is_secure)
        return answer

    async def log_out(request: Request) -> Response:
        await renderer.in_thread(partial(sessions.log_out, request.cookies.get(sessions.cookie, "")))
        answer = RedirectResponse(LOG_IN_PATH, status_code=303)
        answer.delete_cookie(sessions.cookie, httponly=True, samesite="strict", secure=is_secure)
        return answer

    return [
        Route(LOG_IN_PATH, form),
        Route(LOG_IN_PATH, log_in, methods=["POST"]),
        Route("/log-out", log_out, methods=["POST"]),
    ]


def _local_path(text: str) -> str:
    """A path of the console: a link that logs in must not lead elsewhere."""
    is_local = text.startswith("/") and not text.startswith("//") and "\\" not in text
    return text if is_local else "/"


class Renderer:
    """Turns pages and problems into answers."""

    def __init__(self, visits: Visits) -> None:
        self._visits = visits
        self._threads = anyio.CapacityLimiter(THREADS)
        self._templates = TemplateEnvironment(
            loader=PackageLoader("oncelog.console"),
            autoescape=select_autoescape(default=True, default_for_string=True),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "duration": lambda value: NOTHING if value is None else show_duration(value),
            "moment": show_time,
            "size": lambda value: NOTHING if value is None else show_bytes(value),
            "count": count_of,
            "number": lambda value: NOTHING if value is None else f"{value:,}",
            "labelled": labelled,
            "drawn_bars": drawn_bars,
            "path": lambda value: quote(str(value), safe=""),
        }
        self._templates.globals |= {"version": __version__, "query": _query_text, "ago": ago}

    async def prepare(self) -> None:
        """Does what the first page would do for all later ones: compiles templates, and starts a thread."""
        await self.in_thread(lambda: [self._templates.get_template(name) for name in FIRST_TEMPLATES])

    def page(self, make: MakePage) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            visit = self._visits.find(request.cookies)
            if visit is None:
                return _to_log_in(request)
            try:
                query = Query(dict(request.query_params))
                found = await self.in_thread(partial(make, visit.console, query, **request.path_params))
                if found.download is not None:
                    name, contents = found.download
                    return _attachment(name, contents, "application/octet-stream")
                kind = query.word("format")
                if kind in FORMATS:
                    return _download(found, kind, query)
                exports = tuple(found.exports)
                return self._answer(
                    request, visit, found.template, found.title, found.data, 200, is_live=found.live, exports=exports
                )
            except (Problem, KafkaError) as error:
                return await self.problem(request, _as_problem(error))

        return endpoint

    def change(self, make: MakeChange) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            visit = self._visits.find(request.cookies)
            if visit is None:
                return _to_log_in(request)
            client = request.client.host if request.client is not None else "unknown"
            if visit.user is not None:
                client = f"{visit.user} from {client}"
            try:
                form = Query(await read_form(request))
                where = await self.in_thread(partial(make, visit.console, form, client))
                return RedirectResponse(where, status_code=303)
            except (Problem, KafkaError) as error:
                return await self.problem(request, _as_problem(error))

        return endpoint

    async def in_thread(self, call: Callable[[], Any], limiter: anyio.CapacityLimiter | None = None) -> Any:
        threads = limiter if limiter is not None else self._threads
        if threads.statistics().tasks_waiting >= WAITING_MAX:
            raise Busy("Too many pages wait for the cluster.", "Try again in some seconds.")
        return await anyio.to_thread.run_sync(call, limiter=threads)

    async def problem(self, request: Request, problem: Problem) -> Response:
        visit = self._visits.find(request.cookies)
        if visit is None:
            return _to_log_in(request)
        data = {"problem": problem.title, "text": problem.text, "advice": problem.advice, "retry": False}
        is_passing = isinstance(problem, Unreachable | NotYet)
        data["retry"] = is_passing or isinstance(problem, Busy)
        return self._answer(request, visit, "problem.html", problem.title, data, problem.status, is_live=is_passing)

    def log_in_form(self, request: Request, where: str, problem: Problem | None = None) -> Response:
        text = self._templates.get_template("log_in.html").render(
            title="Log in",
            nonce=request.state.nonce,
            next=where,
            problem=f"{problem.text} {problem.advice}" if problem is not None else "",
        )
        return HTMLResponse(text, 200 if problem is None else problem.status)

    async def http_error(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        if status == 404:
            return await self.problem(request, NotThere(f"The console has no page {request.url.path!r}."))
        problem = BadInput(error.detail if isinstance(error, HTTPException) else "It failed.")
        problem.status = status
        return await self.problem(request, problem)

    async def unexpected(self, request: Request, error: Exception) -> Response:
        """A fault of the console. The server logs it with its stack."""
        problem = Problem("The console failed to make this page.", "Its log, on the standard error, has the details.")
        problem.status, problem.title = 500, "A fault of the console"
        return await self.problem(request, problem)

    def _answer(
        self,
        request: Request,
        visit: Visit,
        template: str,
        title: str,
        data: dict[str, Any],
        code: int,
        *,
        is_live: bool,
        exports: tuple[str, ...] = (),
    ) -> Response:
        console = visit.console
        status = status_row(console.watch.state, console.admin.config.bootstrap_servers, console.now_ms())
        vary = {"Vary": "Accept"}
        if _wants_json(request):
            return JSONResponse({"title": title, "status": status, "data": data}, code, headers=vary)
        text = self._templates.get_template(template).render(
            title=title,
            status=status,
            data=data,
            nonce=request.state.nonce,
            path=request.url.path,
            json_link=_query_text(dict(request.query_params), format="json"),
            params=dict(request.query_params),
            is_live=is_live,
            exports=exports,
            token=console.token,
            now_ms=console.now_ms(),
            allow_changes=console.settings.allow_changes,
            user=visit.user,
            or_hidden="" if console.admin.config.security_protocol == "PLAINTEXT" else OR_HIDDEN,
        )
        return HTMLResponse(text, code, headers=vary)


def _download(page: Page, kind: str, query: Query) -> Response:
    tables = page.exports
    if not tables:
        raise BadInput("This page has no rows to export.", "As JSON it has everything: ?format=json")
    table = query.choice("export", tuple(tables))
    rows = page.lines if kind == "jsonl" and page.lines is not None else tables[table]
    name = page.template.removesuffix(".html") + ("" if table == "rows" else f"-{table.replace(' ', '-')}")
    return _attachment(f"{name}.{kind}", export(rows, kind).encode(), FORMATS[kind])


def _attachment(name: str, contents: bytes, media_type: str) -> Response:
    """The header of a download. The file has a name of the console's: names of topics and groups must not get into a
    header."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(contents, media_type=media_type, headers=headers)


def _to_log_in(request: Request) -> Response:
    if _wants_json(request) or request.method not in SAFE_METHODS:
        return PlainTextResponse("Log in first.\n", 401)
    where = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(f"{LOG_IN_PATH}?{urlencode({'next': where})}", status_code=303)


def _wants_json(request: Request) -> bool:
    if request.query_params.get("format") == "json":
        return True
    accepted = request.headers.get("accept", "")
    return "application/json" in accepted and "text/html" not in accepted


def _query_text(params: dict[str, Any], **changed: Any) -> str:
    """The query of a link: these parameters with some changed; None removes one."""
    merged = {name: value for name, value in {**params, **changed}.items() if value not in (None, "")}
    return "?" + urlencode(merged)


def _as_problem(error: Problem | KafkaError) -> Problem:
    if isinstance(error, Problem):
        return error
    text = f"{error.message or error.code.name} ({error.code.name})"
    if error.code in RETRIABLE:
        return Unreachable(text, "The console goes on trying.")
    problem = Problem(text)
    is_denied = error.code.name.endswith("AUTHORIZATION_FAILED")
    problem.status, problem.title = (403, "ACLs do not allow this") if is_denied else (502, "The cluster has refused")
    return problem


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form. Only the plain encoding is taken, which browsers use by default."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        raise BadInput("A form is sent as application/x-www-form-urlencoded.")
    body = b""
    try:
        with anyio.fail_after(FORM_S):
            async for part in request.stream():
                body += part
                if len(body) > FORM_BYTES_MAX:
                    raise BadInput("The form is too large.")
    except TimeoutError:
        raise BadInput("The form did not arrive in time.") from None
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=50))
    except ValueError:
        raise BadInput("The form cannot be read.") from None
