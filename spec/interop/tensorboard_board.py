"""A TensorBoard on a port of its choice, asked over HTTP.

    with Board(folder, lambda tags: "run" in tags) as board:
        board.json("scalars/scalars", run="run", tag="loss")
"""
import json
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request


class Board:
    def __init__(self, folder, ready, seconds=120):
        self.folder, self.ready, self.seconds = folder, ready, seconds

    def __enter__(self):
        log = self.folder + "/tensorboard.log"
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", self.folder, "--port", "0", "--host",
                   "127.0.0.1", "--reload_interval", "1", "--samples_per_plugin", "scalars=1000,histograms=100"]
        with open(log, "wb") as f:
            self.process = subprocess.Popen(command, stdout=f, stderr=f)
        try:
            self.address = self._address(log)
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(20)

    def _address(self, log):
        end = time.time() + self.seconds
        while time.time() < end and self.process.poll() is None:
            m = re.search(r"http://127\.0\.0\.1:\d+", open(log).read())
            if m:
                return m.group(0)
            time.sleep(0.1)
        raise SystemExit("tensorboard did not start:\n" + open(log).read())

    def _wait(self):
        """Until the runs are there and nothing new has come for a while."""
        end, last, quiet = time.time() + self.seconds, None, 0
        while time.time() < end:
            tags = self.json("scalars/tags")
            quiet = quiet + 1 if tags == last and self.ready(tags) else 0
            if quiet >= 6:
                return
            last = tags
            time.sleep(0.5)
        raise SystemExit("tensorboard does not show the runs: %s" % last)

    def get(self, path, data=None):
        r = urllib.request.Request(self.address + path, data=data)
        if data is not None:
            r.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(r, timeout=60) as answer:
            return answer.read()

    def plugin(self, path, **query):
        return self.get("/data/plugin/" + path + ("?" + urllib.parse.urlencode(query) if query else ""))

    def json(self, path, **query):
        return json.loads(self.plugin(path, **query))

    def post(self, path, value):
        return json.loads(self.get("/data/plugin/" + path, json.dumps(value).encode()))
