"""A real PostgreSQL of one's own: binaries from a wheel or anywhere else, started, shared and stopped by us.

    server = Server.start(home(os.environ), environ=os.environ)    # starts it, or attaches when it runs already
    Server.running(home(os.environ))                               # attaches, never starts
    server.stop()

What lies where: `layout`. Who runs it: `identity`. With which binaries: `binaries`. With which settings: `settings`.
"""

from penstock.embedded.layout import home
from penstock.embedded.server import Server

__all__ = ["Server", "home"]
