"""A page and its htmx partial from one template: the whole page, or one block of it."""

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.template import RequestContext, Template, loader
from django.template.base import Node
from django.template.loader_tags import (
    BLOCK_CONTEXT_KEY,
    BlockContext,
    BlockNode,
    ExtendsNode,
)
from django.utils.cache import patch_vary_headers


def is_partial(request: HttpRequest) -> bool:
    """True if htmx asks for a fragment (history is restored by whole pages)."""
    return request.headers.get("HX-Request") == "true"


def render(
    request: HttpRequest,
    template: str,
    partial: str,
    context: Mapping[str, Any],
    *,
    status: int = 200,
) -> HttpResponse:
    """Render `template`, or only its block `partial` if htmx asked.

    An empty `partial` always gives the whole page. Caches keep the two apart (`Vary`).
    Raises `LookupError` if the template has no such block.
    """
    if partial and is_partial(request):
        html = render_block(template, partial, context, request)
    else:
        html = loader.render_to_string(template, dict(context), request)
    response = HttpResponse(html, status=status)
    patch_vary_headers(response, ["HX-Request"])
    return response


def render_form(request: HttpRequest, template: str, context: Mapping[str, Any]) -> HttpResponse:
    """A page around the form `context["form"]`: 422 when what was sent in it is refused."""
    return render(request, template, "", context, status=422 if context["form"].errors else 200)


def render_block(
    template: str, block: str, context: Mapping[str, Any], request: HttpRequest
) -> str:
    """HTML of one block of `template`, as the page itself would show it."""
    compiled: Template = loader.get_template(template).template  # type: ignore[attr-defined]
    values = RequestContext(request, dict(context))
    with values.bind_template(compiled), values.render_context.push_state(compiled):
        blocks = BlockContext()
        node = _collect(compiled, blocks, block)
        values.render_context[BLOCK_CONTEXT_KEY] = blocks
        return node.render(values)


def _collect(compiled: Template, blocks: BlockContext, name: str) -> Node:
    """The template's own block of that name, with all of its blocks registered for nesting."""
    extends = [node for node in compiled.nodelist if isinstance(node, ExtendsNode)]
    if extends:
        named: dict[str, BlockNode] = extends[0].blocks
    else:
        found = compiled.nodelist.get_nodes_by_type(BlockNode)
        named = {node.name: node for node in found if isinstance(node, BlockNode)}
    blocks.add_blocks(named)
    if name in named:
        return named[name]
    raise LookupError(f"{compiled.name} has no block {name!r}")
