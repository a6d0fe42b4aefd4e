"""Handlers: what people decorate, what they are given, and what is known of them. No I/O."""

from penstock.handlers.context import AsyncContext, Context, Held
from penstock.handlers.registry import ANY_KIND, Registry, Spec

__all__ = ["ANY_KIND", "AsyncContext", "Context", "Held", "Registry", "Spec"]
