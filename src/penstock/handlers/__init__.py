"""Handlers: the functions that an application decorates, their context, and their registry.

This package does no I/O.
"""

from penstock.handlers.context import AsyncContext, Context, Held
from penstock.handlers.follow_ups import ANY_KIND
from penstock.handlers.middleware import AsyncRunHandler, RunHandler
from penstock.handlers.registry import Mode, Registry, Spec

__all__ = ["ANY_KIND", "AsyncContext", "AsyncRunHandler", "Context", "Held", "Mode", "Registry", "RunHandler", "Spec"]
