import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;

import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AclBindingFilter;

/**
 * Java clients driven by a script: one command per line on stdin, one JSON object per line on stdout.
 *
 * Usage: java -cp "JARS/*" TxnClient.java BOOTSTRAP [PROPERTIES]
 *
 * PROPERTIES is a file with settings of all clients; @FILE in the place of key=value is one for a single client.
 *
 *   producer NAME TRANSACTIONAL_ID|- [key=value ...]      consumer NAME GROUP|- TOPIC[,TOPIC] [key=value ...]
 *   init|begin|commit|abort|flush|close NAME              poll NAME MS [COUNT]
 *   send NAME TOPIC PARTITION KEY VALUE ("-" = null)      offsetsof PRODUCER CONSUMER
 *   offsets NAME GROUP TOPIC PARTITION OFFSET [GENERATION MEMBER]
 *   create TOPIC   delete TOPIC   topics   acls
 *   fence ID   describe ID   list   hanging TOPIC PARTITION (aborts it as the admin tool does)   terminate ID   features
 *
 * Every answer has "command" and "ok"; a failed one has "exception" (class name), "cause" and "message".
 */
public class TxnClient {
    private static final long WAIT_S = 120;
    private static final ObjectMapper JSON = new ObjectMapper();
    private final String bootstrap;
    private final Admin admin;
    private final Map<String, Object> shared = new HashMap<>();
    private final Map<String, KafkaProducer<String, String>> producers = new HashMap<>();
    private final Map<String, KafkaConsumer<String, String>> consumers = new HashMap<>();

    private TxnClient(String[] args) throws Exception {
        if (args.length > 1)
            load(args[1], shared);
        this.bootstrap = args[0];
        this.admin = Admin.create(settings(new String[0], 0));
    }

    public static void main(String[] args) throws Exception {
        TxnClient client = new TxnClient(args);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            if (!line.isBlank()) {
                System.out.println(JSON.writeValueAsString(client.answer(line.trim().split("\\s+"))));
                System.out.flush();
            }
        }
        // A script that ends leaves its open transactions open, as a crashed client would.
        Runtime.getRuntime().halt(0);
    }

    private Map<String, Object> answer(String[] words) {
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("command", words[0]);
        try {
            run(words, result);
            result.put("ok", true);
        } catch (Throwable thrown) {
            Throwable error = thrown instanceof ExecutionException && thrown.getCause() != null ? thrown.getCause() : thrown;
            result.put("ok", false);
            result.put("exception", error.getClass().getSimpleName());
            result.put("cause", error.getCause() == null ? null : error.getCause().getClass().getSimpleName());
            result.put("message", error.getMessage());
        }
        return result;
    }

    private void run(String[] words, Map<String, Object> result) throws Exception {
        String name = words.length > 1 ? words[1] : "";
        switch (words[0]) {
            case "producer" -> replace(producers.put(name, newProducer(words)));
            case "consumer" -> replace(consumers.put(name, newConsumer(words)));
            case "init" -> producer(name).initTransactions();
            case "begin" -> producer(name).beginTransaction();
            case "commit" -> producer(name).commitTransaction();
            case "abort" -> producer(name).abortTransaction();
            case "flush" -> producer(name).flush();
            case "close" -> close(name);
            case "send" -> send(words, result);
            case "poll" -> poll(words, result);
            case "offsets" -> producer(name).sendOffsetsToTransaction(
                Map.of(new TopicPartition(words[3], Integer.parseInt(words[4])), new OffsetAndMetadata(Long.parseLong(words[5]))),
                words.length > 7
                    ? new ConsumerGroupMetadata(words[2], Integer.parseInt(words[6]), words[7], Optional.empty())
                    : new ConsumerGroupMetadata(words[2]));
            case "offsetsof" -> offsetsOf(producer(name), consumers.get(words[2]));
            case "create" -> admin.createTopics(List.of(new NewTopic(name, 1, (short) 1))).all().get(WAIT_S, TimeUnit.SECONDS);
            case "delete" -> admin.deleteTopics(List.of(name)).all().get(WAIT_S, TimeUnit.SECONDS);
            case "topics" -> result.put("topics", admin.listTopics().names().get(WAIT_S, TimeUnit.SECONDS));
            case "acls" -> result.put("acls", admin.describeAcls(AclBindingFilter.ANY).values().get(WAIT_S, TimeUnit.SECONDS).size());
            case "fence" -> admin.fenceProducers(List.of(name)).all().get(WAIT_S, TimeUnit.SECONDS);
            case "terminate" -> admin.forceTerminateTransaction(name).result().get(WAIT_S, TimeUnit.SECONDS);
            case "describe" -> describe(name, result);
            case "list" -> result.put("transactions", listTransactions());
            case "hanging" -> abortHanging(new TopicPartition(name, Integer.parseInt(words[2])));
            case "features" -> admin.describeFeatures().featureMetadata().get(WAIT_S, TimeUnit.SECONDS).finalizedFeatures()
                .forEach((feature, range) -> result.put(feature, range.maxVersionLevel()));
            default -> throw new IllegalArgumentException("unknown command " + words[0]);
        }
    }

    /** A name used again leaves its former client behind, which need not end what it began. */
    private void replace(AutoCloseable former) throws Exception {
        if (former instanceof KafkaProducer<?, ?> producer)
            producer.close(Duration.ZERO);
        else if (former != null)
            former.close();
    }

    private KafkaProducer<String, String> producer(String name) {
        KafkaProducer<String, String> found = producers.get(name);
        if (found == null)
            throw new IllegalArgumentException("no producer named " + name);
        return found;
    }

    private static void load(String file, Map<String, Object> settings) throws IOException {
        try (BufferedReader reader = Files.newBufferedReader(Path.of(file))) {
            Properties properties = new Properties();
            properties.load(reader);
            properties.forEach((key, value) -> settings.put((String) key, value));
        }
    }

    private Map<String, Object> settings(String[] words, int from) throws IOException {
        Map<String, Object> settings = new HashMap<>(shared);
        settings.put("bootstrap.servers", bootstrap);
        for (String word : Arrays.asList(words).subList(from, words.length)) {
            if (word.startsWith("@")) {
                load(word.substring(1), settings);
                continue;
            }
            int equals = word.indexOf('=');
            settings.put(word.substring(0, equals), word.substring(equals + 1));
        }
        return settings;
    }

    private KafkaProducer<String, String> newProducer(String[] words) throws IOException {
        Map<String, Object> settings = settings(words, 3);
        settings.putIfAbsent("max.block.ms", "120000");
        settings.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        settings.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        if (!words[2].equals("-"))
            settings.put("transactional.id", words[2]);
        return new KafkaProducer<>(settings);
    }

    private KafkaConsumer<String, String> newConsumer(String[] words) throws IOException {
        Map<String, Object> settings = settings(words, 4);
        settings.putIfAbsent("auto.offset.reset", "earliest");
        settings.putIfAbsent("enable.auto.commit", "false");
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        if (!words[2].equals("-"))
            settings.put("group.id", words[2]);
        KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings);
        List<String> topics = Arrays.asList(words[3].split(","));
        if (words[2].equals("-")) {
            List<TopicPartition> all = new ArrayList<>();
            for (String topic : topics)
                consumer.partitionsFor(topic).forEach(info -> all.add(new TopicPartition(topic, info.partition())));
            consumer.assign(all);
        } else {
            consumer.subscribe(topics);
        }
        return consumer;
    }

    private void send(String[] words, Map<String, Object> result) throws Exception {
        String key = words[4].equals("-") ? null : words[4];
        String value = words[5].equals("-") ? null : words[5];
        ProducerRecord<String, String> record = new ProducerRecord<>(words[2], Integer.parseInt(words[3]), key, value);
        RecordMetadata sent = producer(words[1]).send(record).get(WAIT_S, TimeUnit.SECONDS);
        result.put("offset", sent.offset());
    }

    private void poll(String[] words, Map<String, Object> result) {
        KafkaConsumer<String, String> consumer = consumers.get(words[1]);
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(Long.parseLong(words[2]));
        int wanted = words.length > 3 ? Integer.parseInt(words[3]) : Integer.MAX_VALUE;
        List<Object> records = new ArrayList<>();
        while (records.size() < wanted && System.nanoTime() < deadline) {
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100)))
                records.add(Arrays.asList(record.topic(), record.partition(), record.offset(), record.key(), record.value()));
        }
        result.put("records", records);
        result.put("generation", consumer.groupMetadata().generationId());
    }

    private void offsetsOf(KafkaProducer<String, String> producer, KafkaConsumer<String, String> consumer) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        consumer.assignment().forEach(partition -> offsets.put(partition, new OffsetAndMetadata(consumer.position(partition))));
        producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
    }

    private void close(String name) {
        if (consumers.containsKey(name))
            consumers.remove(name).close();
        else
            producers.remove(name).close(Duration.ofSeconds(5));
    }

    private void describe(String id, Map<String, Object> result) throws Exception {
        var found = admin.describeTransactions(List.of(id)).description(id).get(WAIT_S, TimeUnit.SECONDS);
        result.put("state", found.state().toString());
        result.put("producerId", found.producerId());
        result.put("epoch", found.producerEpoch());
        result.put("timeoutMs", found.transactionTimeoutMs());
        result.put("partitions", found.topicPartitions().stream().map(TopicPartition::toString).sorted().toList());
    }

    private Map<String, String> listTransactions() throws Exception {
        Map<String, String> states = new LinkedHashMap<>();
        admin.listTransactions().all().get(WAIT_S, TimeUnit.SECONDS)
            .forEach(listing -> states.put(listing.transactionalId(), listing.state().toString()));
        return states;
    }

    private void abortHanging(TopicPartition partition) throws Exception {
        var states = admin.describeProducers(List.of(partition)).partitionResult(partition).get(WAIT_S, TimeUnit.SECONDS);
        for (ProducerState state : states.activeProducers()) {
            if (state.currentTransactionStartOffset().isPresent()) {
                admin.abortTransaction(new AbortTransactionSpec(partition, state.producerId(), (short) state.producerEpoch(),
                    state.coordinatorEpoch().orElse(0))).all().get(WAIT_S, TimeUnit.SECONDS);
            }
        }
    }
}
