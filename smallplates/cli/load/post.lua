-- Posts bodies in turn, and prints the figures as JSON: wrk -s post.lua URL -- FOLDER COUNT
-- The bodies are the files FOLDER/1 to FOLDER/COUNT.

function init(arguments)
  local bodies, requests, last = {}, {}, 0
  for index = 1, tonumber(arguments[2]) do
    local file = io.open(arguments[1] .. "/" .. index, "rb")
    bodies[index] = file:read("*a")
    file:close()
  end
  wrk.method, wrk.body = "POST", bodies[1]
  if #bodies > 1 then
    for index, body in ipairs(bodies) do
      requests[index] = wrk.format(nil, nil, nil, body)
    end
    function request()
      last = last % #requests + 1
      return requests[last]
    end
  end
end

function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '\n{"requests": %d, "seconds": %f, "failed": %d, ' ..
    '"p50_ms": %f, "p90_ms": %f, "p95_ms": %f, "p99_ms": %f, "max_ms": %f}\n',
    summary.requests, summary.duration / 1e6,
    e.status + e.connect + e.read + e.write + e.timeout,
    latency:percentile(50) / 1e3, latency:percentile(90) / 1e3, latency:percentile(95) / 1e3,
    latency:percentile(99) / 1e3, latency.max / 1e3))
end
