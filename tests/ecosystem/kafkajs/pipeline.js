// Consume-transform-produce with kafkajs: a transaction per batch, before the first of which one is aborted.
const { Kafka, logLevel } = require('kafkajs')

const [servers, source, target, group, count] = process.argv.slice(2)
const kafka = new Kafka({ brokers: [servers], clientId: 'ecosystem', logLevel: logLevel.ERROR, connectionTimeout: 60000 })
const consumer = kafka.consumer({ groupId: group, readUncommitted: false })
const producer = kafka.producer({ transactionalId: group, maxInFlightRequests: 1, idempotent: true })

async function main() {
  await producer.connect()
  await consumer.connect()
  await consumer.subscribe({ topic: source, fromBeginning: true })
  const aborted = await producer.transaction()
  await aborted.send({ topic: target, messages: [{ value: 'never seen' }] })
  await aborted.abort()
  let left = Number(count)
  await new Promise((resolve, reject) => {
    consumer
      .run({
        autoCommit: false,
        eachBatch: async ({ batch }) => {
          const transaction = await producer.transaction()
          const messages = batch.messages.map((one) => ({ value: one.value.toString().toUpperCase() }))
          await transaction.send({ topic: target, messages })
          const offset = (BigInt(batch.lastOffset()) + 1n).toString()
          const topics = [{ topic: source, partitions: [{ partition: batch.partition, offset }] }]
          await transaction.sendOffsets({ consumerGroupId: group, topics })
          await transaction.commit()
          left -= messages.length
          if (left <= 0) resolve()
        },
      })
      .catch(reject)
  })
  await consumer.disconnect()
  await producer.disconnect()
  console.log('done')
}

main().catch((error) => {
  console.error(error)
  process.exit(1)
})
