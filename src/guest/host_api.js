'use strict';
// Calls routes that this run was granted:
//
//     const host = require('/run/host-api/host_api.js');
//     const item = await host.get('/v1/items/42');
//     const order = await host.post('/v1/orders', {item: 42});
//
// Each returns a promise.  2xx resolves with the parsed JSON, or the text where it is none; anything else rejects with an error that
// has .status and .text.  A body is sent as JSON.  What a path may have is the broker's to say.
const http = require('http');

const socketPath = process.env.HOST_API_SOCKET || process.env.SANDBOX_HOST_API || '/run/host-api.sock';

class HostApiError extends Error {
  constructor(status, text) {
    super(`${status}: ${text.trim()}`);
    this.name = 'HostApiError';
    this.status = status;
    this.text = text;
  }
}

function valueOf(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

function settle(response, resolve, reject) {
  const parts = [];
  response.on('data', (part) => parts.push(part));
  response.on('error', reject);
  response.on('end', () => {
    const text = Buffer.concat(parts).toString('utf8');
    if (response.statusCode >= 200 && response.statusCode < 300) {
      resolve(valueOf(text));
    } else {
      reject(new HostApiError(response.statusCode, text));
    }
  });
}

function call(method, path, body) {
  return new Promise((resolve, reject) => {
    const data = body === undefined ? null : Buffer.from(JSON.stringify(body));
    const headers = data === null ? {} : {'Content-Length': data.length};
    let answered = false;
    const request = http.request({socketPath, method, path, headers, agent: false}, (response) => {
      answered = true;
      settle(response, resolve, reject);
    });
    // Who refuses a body early closes its end; the answer is there all the same.
    request.on('error', (error) => answered || reject(error));
    request.end(data);
  });
}

module.exports = {
  HostApiError,
  call,
  get: (path) => call('GET', path),
  put: (path, body) => call('PUT', path, body),
  post: (path, body) => call('POST', path, body),
  patch: (path, body) => call('PATCH', path, body),
  del: (path) => call('DELETE', path),
};
