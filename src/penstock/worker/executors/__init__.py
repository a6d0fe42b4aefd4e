"""Three ways to run handlers: in threads, as coroutines on one loop, and in processes of their own."""
