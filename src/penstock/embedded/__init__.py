"""A private PostgreSQL server: Penstock finds the binaries in a wheel or elsewhere, and starts, shares and stops it.

    server = Server.start(home(os.environ), environ=os.environ)    # starts it, or attaches when it runs already
    Server.running(home(os.environ))                               # attaches, never starts
    server.stop()

`layout` says where the files are, `identity` chooses the user that runs the server, `binaries` finds the programs, and
`settings` has the configuration.
"""

from penstock.embedded.layout import home
from penstock.embedded.server import Server

__all__ = ["Server", "home"]
